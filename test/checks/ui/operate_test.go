package ui

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/heapprofiler"
	"github.com/chromedp/chromedp"
)

// TestZoom zooms into a prefix of the cache by the picture, back by the path, and in again by the
// table and the keyboard; the place is in the address, so that the page can be shared.
func TestZoom(t *testing.T) {
	service, _ := start(t)
	base := newStub(t, service, 8)
	p := open(t, base, "#/cache", 1440, 900, false)
	p.says("Hottest prefixes")
	boxes := `document.querySelectorAll(".icicle .box").length`
	all := p.is(boxes).(float64)
	p.await(`document.querySelector("nav.path button")?.disabled`) // everything is shown
	p.is(`document.querySelector(".icicle .box").dispatchEvent(new MouseEvent("click", {bubbles: true}))`)
	p.await(`location.hash.includes("at=") && document.querySelector("nav.path button")?.disabled === false`)
	if zoomed := p.is(boxes).(float64); zoomed > all {
		t.Errorf("%v boxes are drawn of a part, %v of everything", zoomed, all)
	}
	p.await(`Number(document.querySelector(".icicle .box rect")?.getAttribute("width")) > 1190`) // it has the whole width
	p.shoot("zoom", false)
	p.audit("zoom")
	hash := p.is("location.hash").(string)
	shared := open(t, base, hash, 1440, 900, false)
	shared.await(`document.querySelector("nav.path button")?.disabled === false`)
	p.press("everything")
	p.await(`!location.hash.includes("at=") && ` + boxes + ` === ` + strconv.FormatFloat(all, 'f', -1, 64))
	p.is(`document.querySelector(".icicle .box").focus()`)
	p.is(`document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key: "Enter", bubbles: true}))`)
	p.await(`location.hash.includes("at=")`)
	p.press("everything")
	p.is(`document.querySelector("tbody button.link").click()`)
	p.await(`location.hash.includes("at=")`)
}

// TestDelete: an operator deletes a worker after a question that says what happens; a No changes
// nothing, and the log has who did it.
func TestDelete(t *testing.T) {
	service, _ := start(t, "--use-kv-events=false")
	register(t, service, 7, "")
	register(t, service, 8, "")
	p := open(t, service, "#/fleet?worker=7", 1440, 900, false)
	p.press("Delete …")
	p.says("Delete worker 7?")
	p.shoot("delete", false)
	p.audit("delete")
	p.press("Cancel")
	p.await(`!document.querySelector("dialog.confirm")`)
	p.says("7 · 0")
	p.press("Delete …")
	p.press("Delete worker 7")
	p.await(`!document.querySelector("dialog.confirm")`)
	p.await(`[...document.querySelectorAll("tbody .link")].map((e) => e.innerText).join() === "8 · 0"`)
}

// TestThresholds: an operator sets and unsets a model's busy threshold, each after a question that
// names the model and what it does.
func TestThresholds(t *testing.T) {
	service, _ := start(t, "--use-kv-events=false")
	register(t, service, 1, "")
	p := open(t, service, "", 1440, 900, false)
	p.press("Thresholds …")
	change := `[...document.querySelectorAll("dialog[open] button")].find((e) => e.getAttribute("aria-label")?.endsWith("of llama"))`
	p.await(change)
	enter := func(value string) {
		p.is(change + ".click()")
		p.await(`document.querySelector("dialog[open] input")`)
		p.is(fmt.Sprintf(`{const i = document.querySelector("dialog[open] input"); i.value = %q; i.dispatchEvent(new Event("input", {bubbles: true}));}`, value))
	}
	enter("nonsense")
	p.await(`document.querySelector("dialog[open] button.primary")?.disabled`)
	p.press("Cancel")
	enter("0.5")
	p.press("Set …")
	p.says("Set a threshold?")
	p.says("For all tenants of llama")
	p.shoot("thresholds", false)
	p.audit("thresholds")
	p.press("Set it")
	p.await(`!document.querySelector("dialog.confirm")`)
	p.await(`document.querySelector("dialog[open] td")?.innerText.includes("50")`)
	p.shoot("thresholds-set", false)
	enter("")
	p.press("Unset …")
	p.press("Unset it")
	p.await(`document.querySelector("dialog[open] td")?.innerText.includes("none")`)
}

// alone reports whether the machine has nothing else to do, so that times mean something.
func alone() bool { return os.Getenv("E2E_ALONE") != "" }

// judge compares a measured value with its limit, where the machine is alone.
func judge(t *testing.T, what string, value, limit float64) {
	t.Helper()
	t.Logf("%s: %.3g, want at most %.3g", what, value, limit)
	if alone() && value > limit {
		t.Errorf("%s: %.3g, want at most %.3g", what, value, limit)
	}
}

// TestFirstPaint: the first view with something to see comes within a second.
func TestFirstPaint(t *testing.T) {
	service, _ := start(t, "--use-kv-events=false")
	register(t, service, 1, "")
	p := open(t, service, "", 1440, 900, false)
	p.says("1 · 0")
	judge(t, "seconds to the first paint with content", p.is(`performance.getEntriesByName("first-contentful-paint")[0].startTime`).(float64)/1000, 1)
}

// cpuOf returns the seconds of CPU that a process has taken.
func cpuOf(t *testing.T, pid int) float64 {
	t.Helper()
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		t.Skip("there is no /proc")
	}
	f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+2:]))
	user, _ := strconv.ParseFloat(f[11], 64)
	system, _ := strconv.ParseFloat(f[12], 64)
	return (user + system) / 100 // ticks
}

// TestTabs: five open tabs cost a service with 8,000 ranks at most 3 % of a core.
func TestTabs(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes half a minute")
	}
	service, pid, _ := launch(t, "--use-kv-events=false")
	for id := range 1000 {
		post(t, service+"/workers", "", fmt.Sprintf(`{"worker_id": %d, "model_name": "llama", "endpoint": "http://127.0.0.1:1", "block_size": 16, "total_kv_blocks": 100, "data_parallel_size": 8}`, id+1))
	}
	measure := func(over time.Duration) float64 {
		before, began := cpuOf(t, pid), time.Now()
		<-time.After(over)
		return (cpuOf(t, pid) - before) / time.Since(began).Seconds()
	}
	idle := measure(10 * time.Second)
	for range 5 {
		p := open(t, service, "", 1440, 900, false)
		p.says("8,000")
		p.is(shown)
	}
	before := polls(t, service)
	judge(t, "cores for five tabs", measure(20*time.Second)-idle, 0.03)
	if n := polls(t, service) - before; n < 60 {
		t.Errorf("five tabs have read the fleet %v times in 20 s", n)
	}
}

// shown has a page behave as one in front: the browser hides all tabs but one, and a hidden page rests.
const shown = `(() => { Object.defineProperty(document, "hidden", {get: () => false}); document.dispatchEvent(new Event("visibilitychange")); })()`

// polls is how often a service was asked for its fleet.
func polls(t *testing.T, service string) (n float64) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, service+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^select_service_http_requests_total\{[^}]*/fleet"[^}]*\} (\S+)`).FindAllStringSubmatch(string(text), -1) {
		v, _ := strconv.ParseFloat(m[1], 64)
		n += v
	}
	return n
}

// TestMemory: a tab at 8,000 ranks, live for ten minutes, does not grow: its heap after a collection is
// at most a quarter larger than after the first minute.
func TestMemory(t *testing.T) {
	if testing.Short() || !alone() {
		t.Skip("it takes ten minutes: E2E_ALONE=1")
	}
	service, _ := start(t)
	p := open(t, newStub(t, service, 1000), "", 1440, 900, false)
	p.says("no sign of life")
	p.is(shown)
	heap := func() float64 {
		do(p, chromedp.Func(func(ctx context.Context, tb *chromedp.Target) error {
			_, err := cdp.Call(ctx, tb, heapprofiler.CollectGarbage, cdp.Empty{})
			return err
		}))
		return p.is("performance.memory.usedJSHeapSize").(float64)
	}
	<-time.After(time.Minute)
	first := heap()
	<-time.After(9 * time.Minute)
	judge(t, "heap after ten minutes against one", heap()/first, 1.25)
}
