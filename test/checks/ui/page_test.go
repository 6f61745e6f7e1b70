package ui

import (
	"fmt"
	"strings"
	"testing"
)

// shots are the views with what they must say once they are drawn.
var shots = []struct{ name, hash, says string }{
	{"fleet", "#/fleet", "no sign of life"},
	{"why", "#/why?decision=last", "candidates"},
	{"ask", "#/why", "Token ids"},
	{"decisions", "#/decisions", "Share of each worker"},
	{"cache", "#/cache", "Hottest prefixes"},
	{"doctor", "#/doctor", "has made no progress"},
	{"replicas", "#/replicas", "Loads that differ"},
	{"rank", "#/fleet?worker=3&rank=3&scope=3", "The engine says"},
}

// TestLook shows every view in both colours, on a laptop and on a phone, for people to look at. No
// view is wider than its window, none has a serious finding of axe-core, a fault on the console, or
// a request elsewhere.
func TestLook(t *testing.T) {
	service, _ := start(t)
	base := newStub(t, service, 1000)
	for _, width := range []int64{1440, 390} {
		for _, dark := range []bool{false, true} {
			if testing.Short() && (width == 390) != dark {
				continue
			}
			for _, s := range shots {
				name := fmt.Sprintf("%s-%d-%s", s.name, width, map[bool]string{false: "light", true: "dark"}[dark])
				t.Run(name, func(t *testing.T) {
					p := open(t, base, s.hash, width, 900, dark)
					p.says(s.says)
					if wide := p.is("document.documentElement.scrollWidth - document.documentElement.clientWidth"); wide.(float64) > 0 {
						t.Errorf("the page is %v px wider than its window", wide)
					}
					p.shoot(name, false)
					p.audit(name)
				})
			}
		}
	}
}

// TestFleet filters, sorts, folds and scrolls 8,000 ranks by the controls; each is in the address. What the doctor says of
// a rank stands in its row.
func TestFleet(t *testing.T) {
	service, _ := start(t)
	p := open(t, newStub(t, service, 1000), "", 1440, 900, false)
	p.says("no sign of life")
	p.await(`document.querySelectorAll(".totals .spark path")[3]?.getAttribute("d")?.includes("L")`) // some differences have come
	first := `document.querySelector("table.fleet tbody .row").innerText`
	if text := p.is(first).(string); !strings.Contains(text, "silent") {
		t.Errorf("the first row is %q, not the most troubled rank", text)
	}
	if rows := p.is(`document.querySelectorAll("table.fleet tbody .row").length`).(float64); rows > 100 {
		t.Errorf("%v rows are drawn", rows)
	}
	p.is(`window.scrollTo(0, document.body.scrollHeight)`)
	p.await(`[...document.querySelectorAll("table.fleet tbody .row")].at(-1).getAttribute("aria-rowindex") === "8001"`)
	p.is(`window.scrollTo(0, 0)`)
	p.is(`location.hash = "#/fleet?sort=constructor&model=llama-3.3-70b&group=research"`) // no such order
	p.await(`document.querySelector("table.fleet tbody .row")?.innerText.includes("stalled")`)
	p.await(`document.querySelector(".totals b")?.innerText === "2,664"`) // of that model alone
	p.is(`location.hash = "#/fleet?q=worker 7 rank 2"`)
	p.await(`document.querySelector("table.fleet tbody a.badge[href='#/doctor']")?.innerText === "warning"`) // what the doctor says of it
}

// TestWorker: the panel of a worker has the sums of its ranks, as its line in the table does.
func TestWorker(t *testing.T) {
	service, _ := start(t)
	p := open(t, newStub(t, service, 8), "#/fleet?fold=1&worker=1", 1440, 900, false)
	p.says("Worker 1")
	const number = `(text) => Number(/[\d,]+/.exec(text)[0].replaceAll(",", ""))`
	for title, column := range map[string]string{"Requests": ".c-requests", "KV blocks": ".c-blocks .num"} {
		p.await(fmt.Sprintf(`((number) => {
			const row = [...document.querySelectorAll("table.fleet tbody .row")].find((r) => r.querySelector(".c-rank button").innerText === "1");
			const fact = [...document.querySelectorAll("dialog dt")].find((e) => e.innerText === %q)?.nextSibling;
			return row && fact && number(row.querySelector(%q).innerText) === number(fact.innerText);
		})(%s)`, title, column, number))
	}
}

// TestTarget: a decision of a request with a target says what that has done to it.
func TestTarget(t *testing.T) {
	service, _ := start(t)
	p := open(t, newStub(t, service, 1), "#/decisions", 1440, 900, false)
	for i, says := range []string{
		"no effect on the choice: the guard rail late_scope is engaged",
		"within 500 ms, and predicted after 120 ms, times a margin of 1.25: 3 ranks hold that",
		"no rank holds that. The request would be refused", "no rank holds that. The request was placed as a probe", "within 0 ms, and predicted after 610 ms",
	} {
		p.await(fmt.Sprintf(`document.querySelectorAll("tbody .row a")[%d]`, i))
		p.is(fmt.Sprintf(`document.querySelectorAll("tbody .row a")[%d].click()`, i))
		p.await(fmt.Sprintf(`document.body.innerText.includes(%q)`, says))
		p.is(`history.back()`)
	}
}

// TestSession: a decision of a session that has left its home says which session, who has started it, where it was and why it
// has moved, and the list finds it by its name.
func TestSession(t *testing.T) {
	service, _ := start(t)
	p := open(t, newStub(t, service, 1), "#/decisions?q=7c1d2f0e-subagent", 1440, 900, false)
	p.await(`document.querySelectorAll("tbody .row .badge.warn[title='The session was on 3 · 1: overloaded']").length > 50`)
	p.shoot("decisions-session", false)
	p.is(`document.querySelector("tbody .row a").click()`)
	p.await(`document.querySelector(".why .session") !== null`)
	p.says("started by claude-7c1d2f0e: its home is worker 3 rank 1, and it went elsewhere since that worker is above a busy threshold")
	p.shoot("why-session", false)
	// What the line above says of the cache is what the chosen rank's row does.
	p.await(`(([, share]) => share === document.querySelector(".candidates .chosen .wide + .num").innerText.replace("Cached", "").trim())(
		/: ([\d.]+.%) counted as cached there/.exec(document.body.innerText) ?? [])`)
	p.is(`location.hash = "#/decisions?q=nobody"`)
	p.says("No decision matches.")
}

// TestDecisions reads a few decisions, and more when that is asked for. A list that is paused is filtered as a
// live one is, and stays, with its filters, while a decision is looked at.
func TestDecisions(t *testing.T) {
	service, _ := start(t)
	p := open(t, newStub(t, service, 1), "#/decisions", 1440, 900, false)
	p.await(`document.querySelectorAll("tbody .row").length === 100`)
	p.press("Show more")
	p.await(`document.querySelectorAll("tbody .row").length === 300`)
	p.press("Pause")
	p.says("paused")
	p.is(`location.hash = "#/decisions?model=qwen3-235b"`)
	p.says("No decision matches.")
	p.is(`location.hash = "#/decisions?model=llama-3.3-70b"`)
	p.await(`document.querySelectorAll("tbody .row").length === 300`)
	p.is(`document.querySelector("tbody .row a").click()`)
	p.await(`location.hash.startsWith("#/why?decision=")`)
	p.await(`document.querySelector("nav a[href='#/decisions?model=llama-3.3-70b']")`)
	p.is(`document.querySelector("nav a[href^='#/decisions']").click()`)
	p.says("paused")
}
