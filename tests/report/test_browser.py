"""The pages in a real browser: they draw, every switch works, nothing is fetched, dark, and on a phone."""

import json
import shutil
import time

import numpy as np
import pytest

import fedminimax as fm
from fedminimax import folders
from fedminimax.report.watch import serve

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is in the extra dev")
BINARY = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (BINARY and DRIVER), reason="needs chromium and chromium-driver (.ci/run installs them)")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --proxy-server=127.0.0.1:9"
)  # a proxy that nobody answers: what would be fetched fails, and is in the log


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = BINARY
    for flag in (*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def page(experiment, tmp_path_factory):
    """A report with every section: curves, clients, weights, three sweeps, a picture."""
    from fedminimax.report import Evidence, gather, page
    from fedminimax.report.material import Material

    t = np.array([0, 10])
    grid = [{"lr_x": a, "local_steps": k} for a in (0.01, 0.1, 1.0) for k in (1, 5)]
    ends = lambda n: np.stack([np.ones((n, 2)), np.linspace(0.1, 0.9, 2 * n).reshape(n, 2)], axis=-1)
    broken = ends(6)
    broken[5, 1, 1] = np.inf
    rng = np.random.default_rng(0)
    drawn = [{"lr_x": 10 ** rng.uniform(-3, 0), "lr_y": 10 ** rng.uniform(-3, 0)} for _ in range(9)]
    made = lambda settings, values: fm.Sweep(
        "A", settings, [0, 1], {"round": t, "loss": values, "score": 1 - values}, {"loss": "lower", "score": "higher"}
    )
    found = gather(experiment)
    searched = {"grid": made(grid, broken), "line": made(grid[::2], ends(3)), "random": made(drawn, ends(9))}
    evidence = Evidence.of(found.records)
    target = tmp_path_factory.mktemp("page") / "report.html"
    target.write_text(page.render(Material(found.records, searched, found.sources), evidence, "score"), encoding="utf-8")
    return target.as_uri()


def fetched(browser):
    """What the page asked for since the log was read last."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


def complaints(browser):
    return [entry["message"] for entry in browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def opened(browser, url, width=1366, height=900, mobile=False, scheme="light"):
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    browser.get_log("performance")
    browser.get_log("browser")
    browser.get(url)
    until(lambda: browser.execute_script("return document.documentElement.dataset.drawn") == "yes")


def until(holds, seconds=30):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def layout(browser, chart, path):
    return browser.execute_script(f"return document.getElementById('{chart}')._fullLayout.{path}")


def choose(browser, name, value):
    """Use a switch as a keyboard or a mouse would: set it, and let it tell."""
    browser.execute_script(
        """const [name, value] = arguments, list = document.querySelector(`select[name="${name}"]`);
        const e = list || document.querySelector(`input[name="${name}"][value="${value}"]`);
        if (list) { list.value = value; list.dispatchEvent(new Event("change", {bubbles: true})); } else e.click();""",
        name, value,
    )  # fmt: skip


def text(browser, selector):
    return browser.execute_script(f"return document.querySelector('{selector}').textContent")


def shown(browser, selector):
    script = f"return [...document.querySelectorAll('{selector}')].filter(e => e.offsetParent !== null).map(e => e.textContent)"
    return browser.execute_script(script)


def test_the_charts_draw_and_nothing_is_fetched(browser, page):
    opened(browser, page)
    count = lambda selector: browser.execute_script(f"return document.querySelectorAll('{selector}').length")
    assert count("#curves-chart .scatterlayer .trace path.js-line") >= 2
    assert count("#curves-chart .scatterlayer .js-fill") >= 2, "a band each"
    assert count("#clients-chart .bars .point") == 12
    assert count("#weights-chart .heatmaplayer image") == 1
    assert count("#sweeps-chart .heatmaplayer image") == 1
    assert "× diverged" in text(browser, "#sweeps-chart")
    assert browser.execute_script("return [...document.images].every(i => i.complete && i.naturalWidth > 0)")
    assert browser.execute_script("return [...document.querySelectorAll('svg.key line')].length") == 4, (
        "two methods, two metrics"
    )
    titles = browser.execute_script("return [...document.querySelectorAll('.modebar-btn')].map(e => e.dataset.title)")
    assert titles
    assert not [t for t in titles if "Share" in t or "cloud" in t.lower()], "no button sends data away"
    assert all(url.startswith(("file:", "data:", "blob:")) for url in fetched(browser))
    assert not complaints(browser)


def test_every_switch_works(browser, page):
    opened(browser, page)
    assert layout(browser, "curves-chart", "xaxis.title.text") == "rounds"
    for axis, title in (("floats_up", "floats up"), ("grad_evals", "gradient evaluations"), ("round", "rounds")):
        choose(browser, "against", axis)
        assert layout(browser, "curves-chart", "xaxis.title.text") == title
    assert not browser.execute_script("return document.querySelector('input[name=against][value=waited]')"), "it is zero"
    choose(browser, "scale", "log")
    choose(browser, "across", "log")
    assert [layout(browser, "curves-chart", f"{a}axis.type") for a in "xy"] == ["log", "log"]
    assert "not on the log scale" in text(browser, "#curves-caption"), "the score begins at zero"
    fills = "return document.querySelectorAll('#curves-chart .js-fill').length"
    choose(browser, "band", "interval")
    assert "95% t-interval" in text(browser, "#curves-caption")
    choose(browser, "band", "none")
    assert browser.execute_script(fills) == 0
    assert "on score" in shown(browser, ".answer")[0]
    choose(browser, "metric", "loss")
    (answer,) = shown(browser, ".answer")
    assert "on loss (lower is better)" in answer
    assert layout(browser, "curves-chart", "yaxis.title.text") == "loss"
    assert len(shown(browser, "div[data-metric]")) == 1

    order = "return [...document.getElementById('clients-chart').data[0].x]"
    assert browser.execute_script(order) == [str(k) for k in range(6)], "the worst served first"
    choose(browser, "client-first", "B & <b>co</b>")
    assert text(browser, "#clients-caption").startswith("B & <b>co</b>: mean 0.7")
    choose(browser, "client-second", "A")
    assert browser.execute_script("return document.getElementById('clients-chart').data.length") == 2
    choose(browser, "weights-of", "1")
    assert text(browser, "#weights-caption").startswith(
        "B & <b>co</b>: the mean over 3 seeds. At the end client 0 has the most"
    )

    assert "1 diverged (×)" in text(browser, "#sweeps-caption")
    choose(browser, "sweep-metric", "score")
    assert "score (higher is better)" in text(browser, "#sweeps-caption")
    choose(browser, "sweep-x", "local_steps")
    choose(browser, "sweep-y", "lr_x")
    assert layout(browser, "sweeps-chart", "yaxis.title.text") == "lr_x"
    choose(browser, "sweep", "1")
    choose(browser, "sweep-y", "lr_x")
    choose(browser, "sweep-x", "lr_x")
    assert browser.execute_script("return document.getElementById('sweeps-chart').data[0].mode") == "lines+markers"
    choose(browser, "sweep", "2")
    choose(browser, "sweep-y", "lr_y")
    assert browser.execute_script("return document.getElementById('sweeps-chart').data[0].x.length") == 9
    assert layout(browser, "sweeps-chart", "xaxis.type") == "log"
    assert not complaints(browser)
    assert all(url.startswith(("file:", "data:", "blob:")) for url in fetched(browser))


def test_a_keyboard_reaches_every_switch(browser, page):
    from selenium.webdriver.common.keys import Keys

    opened(browser, page)
    names = set()
    for _ in range(40):
        browser.switch_to.active_element.send_keys(Keys.TAB)
        names.add(browser.execute_script("return document.activeElement.name || document.activeElement.className || ''"))
    assert {"metric", "against", "scale", "across", "band", "client-metric", "weights-of", "sweep", "scroll"} <= names
    field = "input[name=scale]:checked"
    browser.execute_script(f"document.querySelector('{field}').focus()")
    browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert layout(browser, "curves-chart", "yaxis.type") == "log"
    unnamed = """return [...document.querySelectorAll('select, input')].filter(e => !e.labels.length).map(e => e.name)"""
    assert browser.execute_script(unnamed) == []


def test_dark_and_print(browser, page):
    paper = "return getComputedStyle(document.body).backgroundColor"
    opened(browser, page)
    light = browser.execute_script(paper), layout(browser, "curves-chart", "font.color")
    opened(browser, page, scheme="dark")
    dark = browser.execute_script(paper), layout(browser, "curves-chart", "font.color")
    brightness = lambda colour: sum(int(part) for part in colour.strip("rgb()").split(","))
    assert brightness(dark[0]) < 150 < 600 < brightness(light[0])
    assert dark[1] != light[1], "charts too"
    browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert layout(browser, "curves-chart", "font.color") == light[1], "on paper it is light"
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    wide = "return [...document.querySelectorAll('table')].filter(e => e.scrollWidth > e.parentElement.clientWidth).length"
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 720, "height": 1000, "deviceScaleFactor": 1, "mobile": False}
    )
    assert browser.execute_script(wide) == 0, "no table is wider than the paper"
    assert all(browser.execute_script("return [...document.querySelectorAll('details')].map(e => e.open)"))
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert not complaints(browser)


@pytest.mark.parametrize("width", [390, 320])
def test_a_phone_need_not_scroll_sideways(browser, page, width):
    opened(browser, page, width, 844, mobile=True)
    sizes = browser.execute_script("return [document.documentElement.scrollWidth, innerWidth]")
    assert sizes == [width, width]
    wide = "return [...document.querySelectorAll('.chart')].filter(e => e.getBoundingClientRect().right > innerWidth).length"
    assert browser.execute_script(wide) == 0
    assert not complaints(browser)


def test_the_live_page_follows_a_run(browser, run, tmp_path):
    run("A", 0, 0.4, rounds=10, wanted=20, status=folders.RUNNING, seconds=5.0).write(tmp_path)
    with serve(tmp_path, every=0.05) as server:
        opened(browser, server.address)
        assert "0 of 1 runs finished, 50% of the rounds" in text(browser, "#words")
        assert "about 5 s left" in text(browser, "#rows")
        assert "0.4000" in text(browser, "#rows")
        choose(browser, "metric", "loss")
        assert layout(browser, "curves-chart", "yaxis.title.text") == "loss"
        run("A", 0, 0.9, seconds=10.0).write(tmp_path)
        until(lambda: "nothing is running any more" in text(browser, "#words"))
        assert layout(browser, "curves-chart", "yaxis.title.text") == "loss", "a choice is kept"
        until(lambda: browser.execute_script("return document.getElementById('curves-chart').data[0].x.at(-1)") == 20)
        assert browser.execute_script("return document.documentElement.scrollWidth <= innerWidth")
        assert {url.removeprefix(server.address) for url in fetched(browser)} <= {"", "plotly.js", "state", "favicon.ico"}
        assert not complaints(browser)
