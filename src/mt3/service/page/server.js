// Requests to the server that gave this page; addresses are relative, so that it may lie behind a prefix.

export async function about() {
  return (await answered(fetch("about"))).json();
}

export async function ask(path, fields, signal) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) {
    form.append(name, value instanceof Blob || typeof value === "string" ? value : JSON.stringify(value));
  }
  return answered(fetch(path, { method: "POST", body: form, signal }));
}

export async function forget(path) {
  return answered(fetch(path, { method: "DELETE" }));
}

async function answered(request) {
  let response;
  try {
    response = await request;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The server does not answer; is it still running?");
  }
  if (response.ok) return response;
  let told = `The server refused this (${response.status}).`;
  try {
    told = (await response.json()).error ?? told;
  } catch {
    // a proxy in between does not speak JSON
  }
  throw new Error(told);
}
