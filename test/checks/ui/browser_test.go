package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	cdplog "github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// patience bounds every wait for something that must happen.
const patience = 30 * time.Second

// chromium starts one browser for the tests of this process, and skips the test if there is none.
var chromium = sync.OnceValues(func() (context.Context, error) {
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		return nil, nil
	}
	ctx, _ := chromedp.NewExecAllocator(context.Background(), append(chromedp.DefaultExecAllocatorOptions[:], // ends with the process
		chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.Flag("force-color-profile", "srgb"), chromedp.Flag("disable-dev-shm-usage", true))...)
	ctx, _ = chromedp.NewContext(ctx) // likewise
	return ctx, chromedp.Do(ctx)
})

// tab is a page of the browser. At the end of its test it must have had no fault on its console and
// no request to another host.
type tab struct {
	t    *testing.T
	ctx  context.Context
	base string

	mu     sync.Mutex // guards what follows
	faults []string
	expect []string // parts of faults that are expected
}

// open shows an address of the page below base.
func open(t *testing.T, base, hash string, width, height int64, dark bool) *tab {
	t.Helper()
	browser, err := chromium()
	if err != nil {
		t.Fatal(err)
	}
	if browser == nil {
		t.Skip("no Chromium: apt-get install chromium")
	}
	ctx, cancel := chromedp.NewContext(browser)
	t.Cleanup(cancel)
	p := &tab{t: t, ctx: ctx, base: base}
	own, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	if err := chromedp.Listen(ctx, func(event any) {
		switch e := event.(type) {
		case *network.EventRequestWillBeSent:
			if u, err := url.Parse(e.Request.URL); err != nil || u.Host != own.Host {
				p.fault("request elsewhere: " + e.Request.URL)
			}
		case *runtime.EventExceptionThrown:
			text := e.ExceptionDetails.Text
			if e.ExceptionDetails.Exception != nil {
				text += " " + e.ExceptionDetails.Exception.Description
			}
			p.fault("exception: " + text)
		case *cdplog.EventEntryAdded:
			if e.Entry.Level == cdplog.EntryLevelError || e.Entry.Level == cdplog.EntryLevelWarning {
				p.fault(string(e.Entry.Level) + ": " + e.Entry.Text + " " + e.Entry.URL)
			}
		case *runtime.EventConsoleAPICalled:
			if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
				text := ""
				for _, a := range e.Args {
					text += fmt.Sprint(" ", a.Description, a.Value)
				}
				p.fault(fmt.Sprintf("console.%s:%s", e.Type, text))
			}
		}
	}); err != nil {
		t.Fatal(err)
	}
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	do(p, chromedp.Func(func(ctx context.Context, t *chromedp.Target) error {
		_, err := cdp.Call(ctx, t, network.Enable, network.EnableParams{})
		if err == nil {
			_, err = cdp.Call(ctx, t, cdplog.Enable, cdp.Empty{})
		}
		if err == nil {
			_, err = cdp.Call(ctx, t, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{
				{Name: "prefers-color-scheme", Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"},
			}})
		}
		return err
	}))
	do(p, chromedp.EmulateViewport(width, height))
	do(p, chromedp.Navigate(base+"/ui/"+hash))
	t.Cleanup(p.check)
	return p
}

// expects names a part of faults that the test provokes.
func (tb *tab) expects(part string) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	tb.expect = append(tb.expect, part)
}

func (tb *tab) fault(text string) {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	tb.faults = append(tb.faults, text)
}

func (tb *tab) check() {
	tb.mu.Lock()
	defer tb.mu.Unlock()
next:
	for _, f := range tb.faults {
		for _, e := range tb.expect {
			if strings.Contains(f, e) {
				continue next
			}
		}
		tb.t.Error(f)
	}
}

// do runs an action, which must succeed.
func do[T any](p *tab, action chromedp.Action[T]) T {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, patience)
	defer cancel()
	v, err := chromedp.Run(ctx, action)
	if err != nil {
		p.t.Fatalf("%v; the page says: %.600s", err, p.text())
	}
	return v
}

// text is what the page says.
func (tb *tab) text() string {
	ctx, cancel := context.WithTimeout(tb.ctx, patience)
	defer cancel()
	text, _ := chromedp.Run(ctx, chromedp.Evaluate[string]("document.body.innerText"))
	return text
}

// is evaluates an expression.
func (tb *tab) is(expression string) any {
	tb.t.Helper()
	return do(tb, chromedp.Evaluate[any](expression))
}

// await waits until an expression is true.
func (tb *tab) await(expression string) {
	tb.t.Helper()
	for end := time.Now().Add(patience); tb.is("Boolean("+expression+")") != true; {
		if time.Now().After(end) {
			tb.t.Fatalf("never true: %s; the page says: %.600s", expression, tb.text())
		}
		select {
		case <-tb.ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// says waits until the page has a text.
func (tb *tab) says(text string) {
	tb.t.Helper()
	quoted, _ := json.Marshal(text)
	tb.await("document.body?.innerText.includes(" + string(quoted) + ")")
}

// press clicks the button or link with a text or a label, in the dialog on top if there is one.
func (tb *tab) press(name string) {
	tb.t.Helper()
	quoted, _ := json.Marshal(name)
	find := fmt.Sprintf(`((name) => {
		const open = [...document.querySelectorAll("dialog[open]")].at(-1) ?? document;
		return [...open.querySelectorAll("button, a, summary, [role=button]")].find((e) =>
			!e.disabled && (e.innerText?.trim() === name || e.getAttribute("aria-label") === name));
	})(%s)`, quoted)
	tb.await(find + " !== undefined")
	tb.is(find + ".click()")
}

// shoot keeps a screenshot of the window, or of the whole page.
func (tb *tab) shoot(name string, whole bool) {
	tb.t.Helper()
	action := chromedp.CaptureScreenshot()
	if whole {
		action = chromedp.FullScreenshot(100)
	}
	png := do(tb, action)
	dir := "../../../bin/ui"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		tb.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644); err != nil {
		tb.t.Fatal(err)
	}
}

// audit has axe-core look for what keeps people out; what is serious or critical is a fault. Without
// SELECT_SERVICE_AXE, its file, nothing is looked for.
func (tb *tab) audit(where string) {
	tb.t.Helper()
	path := os.Getenv("SELECT_SERVICE_AXE")
	if path == "" {
		return
	}
	code, err := os.ReadFile(path)
	if err != nil {
		tb.t.Fatal(err)
	}
	tb.is(string(code) + ";0")
	found := do(tb, chromedp.Evaluate[string](`axe.run(document, {resultTypes: ["violations"]}).then((r) => r.violations
		.map((v) => v.impact + " " + v.id + ": " + v.help + " " + v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + " " + n.failureSummary.replaceAll("\n", " ")).join(" | ")).join("\n"))`,
		func(params *runtime.EvaluateParams) { params.AwaitPromise = new(true) }))
	for line := range strings.Lines(found) {
		if strings.HasPrefix(line, "serious") || strings.HasPrefix(line, "critical") {
			tb.t.Errorf("%s: %s", where, line)
		} else if strings.TrimSpace(line) != "" {
			tb.t.Logf("%s: %s", where, line)
		}
	}
}
