"""The page in a browser: a photo, its damage, the answer, the stream, and an error; by keyboard, wide, narrow, dark.

`MT3_SCREENSHOTS=docs` makes the pictures in docs/ again.
"""

import base64
import io
import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import mt3
from mt3.service import DEFAULT_MODEL
from serving import ask, served

webdriver = pytest.importorskip("selenium.webdriver", reason="driving the page needs selenium")
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

PATIENCE = 60  # seconds, on a machine with other work
WIDE, NARROW = (1180, 1000), (390, 844)


@pytest.fixture(scope="module")
def page() -> Iterator[str]:
    with served(mt3.load(DEFAULT_MODEL), DEFAULT_MODEL, seconds=600.0) as address:
        yield address


def start_browser(profile: Path) -> "webdriver.Chrome":
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("driving the page needs chromium and chromedriver (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for word in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(word)
    options.add_argument(f"--user-data-dir={profile}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options, webdriver.ChromeService(driver))


@pytest.fixture(scope="module")
def browser(tmp_path_factory) -> Iterator["webdriver.Chrome"]:
    chrome = start_browser(tmp_path_factory.mktemp("profile"))
    chrome.set_script_timeout(PATIENCE)
    yield chrome
    chrome.quit()


def wait(browser, condition) -> None:
    WebDriverWait(browser, PATIENCE).until(lambda _: condition())


def text(browser, name: str) -> str:
    return browser.find_element(By.ID, name).text


def settled(browser) -> bool:
    return browser.find_element(By.ID, "answer").get_attribute("aria-busy") == "false"


def changed(browser, change) -> None:
    """Do something that asks the server, and wait for its answer."""
    browser.execute_script("document.getElementById('answer').setAttribute('aria-busy', 'true')")
    change()
    wait(browser, lambda: settled(browser))


def open_page(browser, page: str, size: tuple[int, int] = WIDE, scheme: str = "light") -> None:
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": size == NARROW}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)
    browser.get(page)
    wait(browser, lambda: settled(browser))


def bars(browser, column: int) -> dict[str, float]:
    """Per cent of each class; column 1 is before the step, 2 after it."""
    rows = browser.find_elements(By.CSS_SELECTOR, "#bars tbody tr")
    cells = [row.find_elements(By.CSS_SELECTOR, "th, td") for row in rows]
    return {row[0].text: float(row[column].text.removesuffix(" %")) for row in cells}


def shown_image(browser, name: str) -> np.ndarray:
    """The pixels of an image on the page."""
    script = """
        const picture = document.getElementById(arguments[0]), done = arguments[1];
        picture.decode().then(() => {
            const canvas = document.createElement('canvas');
            [canvas.width, canvas.height] = [picture.naturalWidth, picture.naturalHeight];
            const pen = canvas.getContext('2d');
            pen.drawImage(picture, 0, 0);
            done([canvas.width, canvas.height, ...pen.getImageData(0, 0, canvas.width, canvas.height).data]);
        });"""
    width, height, *values = browser.execute_async_script(script, name)
    return np.array(values, dtype=np.uint8).reshape(height, width, 4)[..., :3]


def choose(browser, name: str, value: str) -> None:
    Select(browser.find_element(By.ID, name)).select_by_value(value)


def keep(browser, path: Path) -> None:
    """Keep a picture of the whole page, in few colours."""
    time.sleep(0.5)  # bars move
    size = browser.execute_script("return [innerWidth, document.documentElement.scrollHeight]")
    clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
    shot = browser.execute_cdp_cmd("Page.captureScreenshot", {"clip": clip, "captureBeyondViewport": True})
    picture = Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")
    picture.quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(path, optimize=True)


def test_the_page_opens_with_an_answer_of_the_model(browser, page):
    open_page(browser, page)
    photo = np.asarray(Image.open(next(Path(mt3.__file__).parent.glob("service/page/examples/ship-1.png"))))
    foggy = mt3.corruptions.apply(photo[None], "fog", 3)
    np.testing.assert_array_equal(shown_image(browser, "clean"), photo)
    np.testing.assert_array_equal(shown_image(browser, "damaged"), foggy[0])
    compared = mt3.Adapter(mt3.load(DEFAULT_MODEL)).compare(mt3.evaluation.predict.as_tensor(foggy, "cpu"))
    for column, logits in ((1, compared.before), (2, compared.after)):
        np.testing.assert_allclose(list(bars(browser, column).values()), 100 * logits[0].softmax(-1), atol=0.51)
    assert text(browser, "verdict").startswith("Before: ship, 94 %. After the step: ship, 94 %. ")
    assert "Right both times. The label is ship." in text(browser, "verdict")
    assert len(browser.find_elements(By.CSS_SELECTOR, "#views-shown img")) == 16
    assert len(browser.find_elements(By.CSS_SELECTOR, "#loss circle")) == 2
    assert "s of computing" in text(browser, "time")


def test_sliders_and_lists_change_the_preview_and_the_answer(browser, page):
    open_page(browser, page)
    before, first = shown_image(browser, "damaged"), bars(browser, 1)
    severity = browser.find_element(By.ID, "severity")
    changed(browser, lambda: severity.send_keys(Keys.ARROW_RIGHT))
    assert text(browser, "damaged-words") == "fog, severity 4"
    assert not np.array_equal(shown_image(browser, "damaged"), before)
    assert bars(browser, 1) != first
    changed(browser, lambda: choose(browser, "corruption", "none"))
    np.testing.assert_array_equal(shown_image(browser, "damaged"), shown_image(browser, "clean"))
    browser.find_element(By.TAG_NAME, "summary").click()
    steps = browser.find_element(By.ID, "steps")
    changed(browser, lambda: steps.send_keys(Keys.ARROW_UP))
    assert len(browser.find_elements(By.CSS_SELECTOR, "#loss circle")) == 3
    changed(browser, lambda: steps.send_keys(Keys.BACKSPACE, "9"))
    assert text(browser, "problem") == "Expected steps to be a whole number from 0 to 5, got 9."


def test_a_photo_is_uploaded(browser, page, tmp_path):
    Image.new("RGB", (90, 60), (200, 30, 30)).save(tmp_path / "red.jpg", quality=95)
    open_page(browser, page)
    changed(browser, lambda: browser.find_element(By.ID, "file").send_keys(str(tmp_path / "red.jpg")))
    assert shown_image(browser, "clean").shape == (32, 32, 3)
    np.testing.assert_allclose(shown_image(browser, "clean")[16, 16], (200, 30, 30), atol=3)
    assert "label" not in text(browser, "verdict")
    assert text(browser, "own") == "red.jpg"
    assert not browser.find_elements(By.CSS_SELECTOR, "#examples input:checked")


def test_a_text_file_is_an_error_in_one_sentence_and_the_page_goes_on(browser, page, tmp_path):
    (tmp_path / "words.txt").write_text("no image")
    open_page(browser, page)
    changed(browser, lambda: browser.find_element(By.ID, "file").send_keys(str(tmp_path / "words.txt")))
    problem = browser.find_element(By.ID, "problem")
    assert problem.get_attribute("role") == "alert"
    assert problem.text == "words.txt is not an image that can be read; give a PNG, JPEG, WebP, BMP, TIFF or GIF."
    changed(browser, lambda: browser.find_elements(By.CSS_SELECTOR, "#examples input")[0].click())
    assert not problem.is_displayed()
    assert "The label is airplane." in text(browser, "verdict")


def score(browser) -> list[str]:
    return browser.execute_script("return [...document.querySelectorAll('#score span')].map((e) => e.textContent)")


def test_a_stream_plays_and_draws_both_accuracies(browser, page):
    open_page(browser, page)
    choose(browser, "stream-corruption", "contrast")
    play = browser.find_element(By.ID, "play")
    play.click()
    wait(browser, lambda: len(score(browser)) == 3 and int(score(browser)[0].split()[0]) >= 5)
    play.click()
    assert play.text == "Play"
    time.sleep(0.5)
    count, before, after = score(browser)
    number = int(count.split()[0])
    marks = browser.find_elements(By.CSS_SELECTOR, "#strip li")
    assert len(marks) == min(number, 12)
    lines = [mark.find_elements(By.TAG_NAME, "span") for mark in marks]
    for words, column in ((before, 0), (after, 1)):
        right = sum(line[column].text.startswith("✓") for line in lines)
        assert abs(float(words.split(": ")[1].split(" %")[0]) - 100 * right / number) <= 0.51
    for name in ("before", "after"):
        points = browser.find_element(By.CSS_SELECTOR, f"#accuracy polyline.{name}").get_attribute("points")
        assert len(points.split()) == number
    browser.find_element(By.ID, "again").click()
    assert text(browser, "score") == "Press Play."


def test_a_stream_that_keeps_its_steps_plays_too(browser, page):
    open_page(browser, page)
    choose(browser, "mode", "own")
    play = browser.find_element(By.ID, "play")
    play.click()
    wait(browser, lambda: len(score(browser)) == 3 and int(score(browser)[0].split()[0]) >= 2)
    play.click()
    assert ask(f"{page}/metrics")[1].decode().count("mt3_streams_open 1\n") == 1
    browser.find_element(By.ID, "again").click()
    wait(browser, lambda: "mt3_streams_open 0\n" in ask(f"{page}/metrics")[1].decode())
    assert not browser.find_element(By.ID, "problem").is_displayed()


def test_everything_can_be_reached_by_keyboard(browser, page):
    open_page(browser, page)
    reached = []
    for _ in range(14):
        webdriver.ActionChains(browser).send_keys(Keys.TAB).perform()
        active = browser.switch_to.active_element
        reached.append(active.get_attribute("id") or active.get_attribute("name") or active.tag_name)
    assert reached == [
        "a", "file", "example", "corruption", "severity", "summary", "mode", "stream-corruption", "stream-severity",
        "play", "again", "a", "body", "a",
    ]  # fmt: skip


def test_controls_have_names_and_images_words(browser, page):
    open_page(browser, page)
    tree = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in tree if not node["ignored"]]
    for role, name in named:
        if role in ("button", "combobox", "slider", "radio", "spinbutton", "image", "link", "table", "region"):
            assert name, role
    assert [name for role, name in named if role == "slider"] == ["Severity"] * 2
    assert ("radio", "cat") in named


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_can_be_read_in_light_and_dark(browser, page, scheme):
    """A contrast of 4.5, as WCAG asks for."""
    open_page(browser, page, WIDE, scheme)
    script = """
        return [...document.querySelectorAll('p, h1, h2, th, td .bar span, legend, label, figcaption, small, button')]
            .filter((e) => e.offsetParent && e.textContent.trim() && !e.disabled).map((e) => {
                let ground = e;
                while (getComputedStyle(ground).backgroundColor.endsWith(', 0)')) ground = ground.parentElement;
                const [ink, behind] = [getComputedStyle(e).color, getComputedStyle(ground).backgroundColor];
                return [e.textContent.trim().slice(0, 30), ink, behind];
            });"""
    found = browser.execute_script(script)
    assert len(found) > 40

    def light(colour: str) -> float:
        parts = [int(part) / 255 for part in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return float(np.dot((0.2126, 0.7152, 0.0722), linear))

    for words, ink, ground in found:
        high, low = sorted((light(ink), light(ground)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5, (words, ink, ground)


@pytest.mark.parametrize("size", [WIDE, NARROW, (320, 640)])
def test_nothing_is_wider_than_the_window(browser, page, size):
    open_page(browser, page, size)
    width, window = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert window == size[0]
    assert width <= window


def test_javascript_of_the_how_to_runs_as_printed(browser, page):
    open_page(browser, page)
    told = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    (block,) = re.findall(r"```js\n(.*?)```", told, re.DOTALL)
    setup = "const lines = [], console = { log: (...words) => lines.push(words) }, photos = [];"
    setup += (
        "for (const name of ['cat-1', 'ship-2']) photos.push(await (await fetch(`page/examples/${name}.png`)).blob());"
    )
    code = block.replace("http://127.0.0.1:8000", page)
    run = f"(async () => {{ {setup} {code}; return lines; }})()"
    script = f"const done = arguments[0]; {run}.then(done, (error) => done(`${{error}}`));"
    lines = browser.execute_async_script(script)
    assert [len(line) for line in lines] == [2, 2], lines
    assert {name for line in lines for name in line} <= set(mt3.load(DEFAULT_MODEL).classes)


@pytest.mark.parametrize(
    ("name", "size", "scheme"), [("wide", WIDE, "light"), ("narrow", NARROW, "light"), ("dark", WIDE, "dark")]
)
def test_pictures_for_the_docs(browser, page, name, size, scheme):
    folder = os.environ.get("MT3_SCREENSHOTS")
    if not folder:
        pytest.skip("set MT3_SCREENSHOTS to a folder to make the pictures of the page")
    open_page(browser, page, size, scheme)
    browser.find_element(By.ID, "play").click()
    wait(browser, lambda: len(score(browser)) == 3 and int(score(browser)[0].split()[0]) >= 60)
    browser.find_element(By.ID, "play").click()
    keep(browser, Path(folder) / f"page-{name}.png")


def test_nothing_was_refused_or_failed_in_the_browser(browser, page):
    """The console holds no error: no script failed, and nothing was loaded from elsewhere."""
    browser.get_log("browser")
    open_page(browser, page)
    assert [entry["message"] for entry in browser.get_log("browser")] == []
    loaded = browser.execute_script("return performance.getEntriesByType('resource').map((e) => e.name)")
    assert len(loaded) > 15
    assert all(name.startswith((page, "blob:", "data:")) for name in loaded)
