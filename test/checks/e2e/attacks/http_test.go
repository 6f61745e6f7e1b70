package attacks

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/select-service/select-service/test/checks/e2e"
)

// front is a listener for HTTP that is attacked.
type front struct {
	*e2e.Service // of the HTTP API

	address string // the attacked listener
	path    string // of a POST that it serves
	body    string
	reached atomic.Int64 // requests that engines got, but those for token ids
	foreign atomic.Int64 // those of them that have another body
}

// fronts starts the attacked listeners: every case of this file is played against each.
var fronts = map[string]func(t *testing.T, args ...string) *front{
	"HTTP API": func(t *testing.T, args ...string) *front {
		f := &front{path: "/select", body: `{"model_name":"m","token_ids":[1]}`}
		f.Service = e2e.Serve(t, nil, append([]string{"--use-kv-events=false", "--max-memory", "512MiB"}, args...)...)
		f.address = f.Address()
		f.add(t, "http://w")
		return f
	},
	"proxy": func(t *testing.T, args ...string) *front {
		f := &front{path: "/v1/chat/completions", body: `{"model":"m","messages":[{"role":"user","content":"hello"}]}`}
		engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			body, err := io.ReadAll(r.Body)
			w.Header().Set("Content-Type", "application/json")
			if r.URL.Path == "/tokenize" {
				_, _ = io.WriteString(w, `{"count":3,"max_model_len":4096,"tokens":[1,2,3]}`)
				return
			}
			f.reached.Add(1)
			if err == nil && (string(body) != f.body || r.URL.Path != f.path) {
				f.foreign.Add(1)
			}
			_, _ = io.WriteString(w, `{"choices":[{"message":{"role":"assistant","content":"one"}}]}`)
		}))
		t.Cleanup(engine.Close)
		f.behind(t, engine.URL, args...)
		return f
	},
}

// onFronts plays an attack against each listener of a service of its own. Meanwhile and afterwards others are served,
// and once the attack's connections are closed nothing of it is left.
func onFronts(t *testing.T, attack func(t *testing.T, f *front), args ...string) {
	t.Helper()
	for name, start := range fronts {
		t.Run(name, func(t *testing.T) {
			beside(t)
			f := start(t, args...)
			f.serves(t)
			before := f.Metric(t, "go_goroutines")
			t.Run("attack", func(t *testing.T) {
				attack(t, f)
				f.serves(t)
			})
			f.serves(t)
			f.isClean(t, before)
		})
	}
}

// behind starts the service with its proxy before an engine.
func (f *front) behind(t *testing.T, engine string, args ...string) {
	t.Helper()
	port := strconv.Itoa(e2e.FreePort(t))
	f.Service = e2e.Serve(t, nil, append([]string{"--use-kv-events=false", "--max-memory", "512MiB", "--proxy-port", port}, args...)...)
	f.address = net.JoinHostPort("127.0.0.1", port)
	f.add(t, engine)
}

func (f *front) add(t *testing.T, engine string) {
	t.Helper()
	f.Must(t, http.StatusCreated, http.MethodPost, "/workers", e2e.Object{
		"worker_id": 1, "model_name": "m", "endpoint": engine, "block_size": 16, "max_num_batched_tokens": 8192, "total_kv_blocks": 16384,
	}, nil)
}

// head is the head of a POST but for its framing and its end.
func (f *front) head() string {
	return "POST " + f.path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
}

// request is the one that is served, with more lines in its head.
func (f *front) request(lines string) string {
	return fmt.Sprintf("%s%sContent-Length: %d\r\n\r\n%s", f.head(), lines, len(f.body), f.body)
}

// chunked is the request with its body in one chunk, with more lines in its head and an extension of the chunk.
func (f *front) chunked(lines, extension string) string {
	return fmt.Sprintf("%s%sTransfer-Encoding: chunked\r\n\r\n%x%s\r\n%s\r\n0\r\n\r\n", f.head(), lines, len(f.body), extension, f.body)
}

// statuses sends a text and returns the statuses of all answers until the connection ends or, if last is met, that
// many have come.
func (f *front) statuses(t *testing.T, text string, last int) (all []int) {
	t.Helper()
	conn := dial(t, f.address, text)
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(e2e.Patience))
	in := bufio.NewReader(conn)
	for len(all) < last {
		a, err := http.ReadResponse(in, &http.Request{Method: http.MethodPost})
		if err != nil {
			return all
		}
		_, err = io.Copy(io.Discard, a.Body)
		_ = a.Body.Close()
		all = append(all, a.StatusCode)
		if err != nil || a.Close {
			return all
		}
	}
	return all
}

// serves proves that others are served: alone on the machine at once, else as soon as a client that tries again after
// 502 or 503 is, since an engine's connection may come late then.
func (f *front) serves(t *testing.T) {
	t.Helper()
	for range 20 {
		served := func() error {
			if got := f.statuses(t, f.request(""), 1); len(got) != 1 || got[0] != http.StatusOK {
				return fmt.Errorf("another client gets %v", got)
			}
			return nil
		}
		if !e2e.Alone() {
			e2e.Eventually(t, "another client is served", served)
		} else if err := served(); err != nil {
			t.Fatal(err)
		}
	}
}

// isClean proves that memory was bounded and, once the attackers have gone, that nothing of them is left.
func (f *front) isClean(t *testing.T, goroutines int) {
	t.Helper()
	most := 300 << 10 // KiB
	if !e2e.Alone() { // the collector comes late beside other work
		most = peakMemory
	}
	if peak, err := f.Status("VmHWM"); err != nil || peak > most {
		t.Errorf("peak %d KiB, want at most %d; %v", peak, most, err)
	} else {
		t.Logf("peak %d MiB", peak>>10)
	}
	e2e.Eventually(t, "goroutines end, and nothing is booked", func() error {
		scopes, err := f.Loads(t.Context())
		for _, s := range scopes {
			for _, l := range s.Loads {
				if l.Carries() {
					err = errors.Join(err, fmt.Errorf("worker %d carries %+v", l.WorkerID, l))
				}
			}
		}
		if n := f.Metric(t, "go_goroutines"); n > goroutines+10 {
			err = errors.Join(err, fmt.Errorf("%d goroutines, %d before", n, goroutines))
		}
		return err
	})
}

// TestRequestForms: requests that are malformed, that two servers could read in two ways, or that ask for what is
// not there are refused by each listener and reach no engine; odd ones that are right are served once.
// RFC 9112, sections 2.2, 3.2, 5.1, 6.1 and 6.3, and RFC 9110, section 7.2, have what is refused.
func TestRequestForms(t *testing.T) {
	for name, start := range fronts {
		t.Run(name, func(t *testing.T) {
			beside(t)
			f := start(t)
			f.serves(t)
			before := f.Metric(t, "go_goroutines")
			with := func(old, new string) string { return strings.Replace(f.request(""), old, new, 1) }
			to := func(target string) string { return with(f.path, target) }
			host := "Host: 127.0.0.1\r\n"
			for name, text := range map[string]string{
				"two lengths":                 f.request("Content-Length: 1\r\n"),
				"a signed length":             with("Content-Length: ", "Content-Length: +"),
				"a negative length":           with("Content-Length: ", "Content-Length: -"),
				"a length in hex":             with("Content-Length: ", "Content-Length: 0x"),
				"a length beyond 64 bits":     with("Content-Length: ", "Content-Length: 99999999999999999999"),
				"lengths in a list":           with("Content-Length: ", "Content-Length: 1, "),
				"another coding":              f.request("Transfer-Encoding: gzip\r\n"),
				"chunked twice":               f.request("Transfer-Encoding: chunked, chunked\r\n"),
				"identity and chunks":         f.chunked("Transfer-Encoding: identity\r\n", ""),
				"chunked, with a tab":         f.request("Transfer-Encoding: \vchunked\r\n"),
				"space before the colon":      f.request("X-A : b\r\n"),
				"coding before the colon":     f.request("Transfer-Encoding : chunked\r\n"),
				"NUL in a value":              f.request("X-A: b\x00c\r\n"),
				"a bare CR in a value":        f.request("X-A: b\rX-B: c\r\n"),
				"a name with a line's end":    f.request("X-A\x0b: b\r\n"),
				"no name":                     f.request(": b\r\n"),
				"no host":                     with(host, ""),
				"two hosts":                   f.request(host),
				"a host with a path":          with(host, "Host: a/b\r\n"),
				"a host with a space":         with(host, "Host: a b\r\n"),
				"NUL in the path":             to(f.path + "\x00"),
				"%00 behind the path":         to(f.path + "%00"),
				"a space in the path":         to(f.path + " /x"),
				"no path":                     to("x"),
				"*":                           to("*"),
				"//":                          to("/" + f.path),
				"/./":                         to("/." + f.path),
				"/../":                        to("/x/.." + f.path),
				"%2e%2e":                      to("/x/%2e%2e" + f.path),
				"%2f":                         to("/x%2f.." + f.path),
				"%2f behind":                  to(f.path + "%2f"),
				"an encoded backslash":        to(f.path + "%5c..%5cpause"),
				"a matrix parameter":          to(f.path + ";x=/pause"),
				"another case":                to(strings.ToUpper(f.path)),
				"an engine's admin route":     to("/flush_cache"),
				"one behind an absolute form": to("http://127.0.0.1/flush_cache"),
				"CONNECT":                     with("POST "+f.path, "CONNECT 127.0.0.1:1"),
				"CONNECT of a path":           with("POST ", "CONNECT "),
				"TRACE":                       with("POST ", "TRACE "),
				"a method with a space":       with("POST ", "PO ST "),
				"HTTP/1.2 of no kind":         with("HTTP/1.1", "HTTP/9.9"),
				"HTTP/0.9":                    with(" HTTP/1.1", ""),
				"a long head":                 f.request("X-A: " + strings.Repeat("x", 200_000) + "\r\n"),
				"a bad chunk":                 strings.Replace(f.chunked("", ""), "\r\n\r\n", "\r\n\r\nzz\r\n", 1),
				"a negative chunk":            strings.Replace(f.chunked("", ""), "\r\n\r\n", "\r\n\r\n-", 1),
				"a chunk in hex":              strings.Replace(f.chunked("", ""), "\r\n\r\n", "\r\n\r\n0x", 1),
				"a chunk beyond 64 bits":      strings.Replace(f.chunked("", ""), "\r\n\r\n", "\r\n\r\nfffffffffffffffff", 1),
				"an extension of 100 KB":      f.chunked("", ";"+strings.Repeat("x", 100_000)),
				"a chunk without its end":     strings.Replace(f.chunked("", ""), f.body+"\r\n", f.body+"xx", 1),
			} {
				reached := f.reached.Load()
				got := f.statuses(t, text, 1)
				for _, status := range got {
					if status/100 != 4 && status != http.StatusNotImplemented && status != http.StatusHTTPVersionNotSupported {
						t.Errorf("%s: statuses %v", name, got)
					}
				}
				if n := f.reached.Load() - reached; n > 0 {
					t.Errorf("%s: it reached the engine", name)
				}
			}
			for name, tt := range map[string]struct {
				text string
				want int // requests that are served
			}{
				"as it should be":         {f.request(""), 1},
				"chunks":                  {f.chunked("", ""), 1},
				"an extension":            {f.chunked("", ";a=b"), 1},
				"the absolute form":       {to("http://127.0.0.1" + f.path), 1},
				"a folded line":           {f.request("X-A: b\r\n c\r\n"), 1}, // net/http makes one line of it, as RFC 9112, section 5.2, allows
				"a query":                 {to(f.path + "?a=%2e%2e%2f"), 1},
				"50 in one go":            {strings.Repeat(f.request(""), 50), 50},
				"length and chunks":       {f.chunked("Content-Length: 4\r\n", "") + f.request(""), 1},
				"chunks, then another":    {f.chunked("Content-Length: 4\r\n", "") + to("/flush_cache"), 1},
				"header named by another": {f.request("Connection: Content-Length, Host, X-A\r\nX-A: b\r\n"), 1},
			} {
				got := f.statuses(t, tt.text, tt.want)
				for _, status := range got {
					if status != http.StatusOK {
						t.Errorf("%s: statuses %v", name, got)
						break
					}
				}
				if len(got) != tt.want {
					t.Errorf("%s: %d answers, want %d", name, len(got), tt.want)
				}
			}
			if n := f.foreign.Load(); n > 0 {
				t.Errorf("%d requests reached the engine with another body or path", n)
			}
			f.serves(t)
			f.isClean(t, before)
		})
	}
}

// TestStalledClients: a thousand connections that fall silent at each stage of a request, or send more and read
// nothing, keep nobody out and leave nothing behind.
func TestStalledClients(t *testing.T) {
	for name, start := range fronts {
		t.Run(name, func(t *testing.T) {
			beside(t)
			f := start(t)
			f.serves(t)
			before := f.Metric(t, "go_goroutines")
			post := f.head()
			var fields strings.Builder
			for i := range 12_000 {
				fields.WriteString(strconv.FormatInt(int64(i)+36*36, 36) + ":\r\n")
			}
			for name, text := range map[string]string{
				"silent":                 "",
				"within the head":        post + "X-",
				"within a long head":     post + strings.Repeat("Long: "+strings.Repeat("x", 1000)+"\r\n", 62),
				"within many fields":     post + fields.String(),
				"within the body":        post + "Content-Length: 100000\r\n\r\n{",
				"within a chunk":         post + "Transfer-Encoding: chunked\r\n\r\nfffff\r\n{",
				"within a length":        post + "Transfer-Encoding: chunked\r\n\r\n0000000",
				"within trailers":        post + "Transfer-Encoding: chunked\r\n\r\n0\r\nX-A: ",
				"answers that wait":      strings.Repeat(f.request(""), 100),
				"waiting for a 100":      post + "Expect: 100-continue\r\nContent-Length: 100000\r\n\r\n",
				"within HTTP/2's begin":  http2.ClientPreface[:20],
				"silent behind HTTP/2's": http2.ClientPreface + "\x00\x00\x00\x04\x00\x00\x00\x00\x00",
			} {
				var held []net.Conn
				for range size(1000, 250) {
					held = append(held, dial(t, f.address, text))
				}
				f.serves(t)
				for i, conn := range held {
					if i%2 == 0 { // half of them tell that they send no more
						_ = conn.(*net.TCPConn).CloseWrite()
					}
				}
				f.serves(t)
				for _, conn := range held {
					_ = conn.Close()
				}
				t.Log(name)
			}
			f.isClean(t, before)
		})
	}
}

// TestStalledElsewhere: thousands of clients of the HTTP API, whose bodies have stopped in the account that it shares with
// the proxy and who come again when they are cut off, keep nobody out at the proxy, and the reverse.
func TestStalledElsewhere(t *testing.T) {
	const clients, size, sent = 2000, 60_000, 40
	f := fronts["proxy"](t)
	f.body = fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":"%s"}]}`, strings.Repeat("a", size))
	f.serves(t)
	tokens := strings.Replace(string(prompt(size)), "{", `{"model_name":"m",`, 1)
	address := map[string]string{"proxy": f.address, "HTTP API": f.Address()}
	whole := map[string]string{"proxy": f.request(""), "HTTP API": fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", holdHead, len(tokens), tokens)}
	for attacked, other := range map[string]string{"HTTP API": "proxy", "proxy": "HTTP API"} {
		t.Run(attacked, func(t *testing.T) {
			stop := make(chan struct{})
			connections(t, address[attacked], clients, stop, func(conn net.Conn) {
				text := whole[attacked]
				if _, err := io.WriteString(conn, text[:len(text)-2]); err == nil {
					_, _ = io.Copy(io.Discard, conn)
				}
			})
			t.Cleanup(func() { close(stop) })
			e2e.Eventually(t, "the account is full", func() error {
				if n, err := f.Sum(t.Context(), `select_service_memory_account_bytes{account="requests"}`); err != nil || n < 19<<20 {
					return fmt.Errorf("%v bytes are used, %w", n, err)
				}
				return nil
			})
			served, last := 0, []int(nil)
			for range sent {
				conn := dial(t, address[other], whole[other])
				_ = conn.SetReadDeadline(time.Now().Add(e2e.Patience))
				if a, err := http.ReadResponse(bufio.NewReader(conn), nil); err == nil {
					if _ = a.Body.Close(); a.StatusCode == http.StatusOK {
						served++
					} else {
						last = append(last, a.StatusCode)
					}
				}
				_ = conn.Close()
			}
			if t.Logf("%d of %d others served", served, sent); served < goodShare*sent {
				t.Errorf("%d of %d requests were served at the %s, the others %v", served, sent, other, last)
			}
		})
	}
}

// TestFloodsOverHTTP2: CVE-2023-44487 (resets), CVE-2023-45288 (CONTINUATION), CVE-2019-9512 (PING),
// CVE-2019-9515 (SETTINGS), CVE-2019-9518 (empty frames), CVE-2025-8671 (resets that the server is made to send),
// CVE-2019-9511 (windows of a byte), CVE-2016-6581 (fields out of the table), and more of the kind.
func TestFloodsOverHTTP2(t *testing.T) {
	encode := func(f *front) []byte {
		var packed bytes.Buffer
		e := hpack.NewEncoder(&packed)
		for _, h := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", f.path}, {":authority", "127.0.0.1"}, {"content-type", "application/json"}} {
			_ = e.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]})
		}
		return packed.Bytes()
	}
	frames := size(20_000, 12_000) // net/http ends a connection that is owed 10,000 control frames
	floods := map[string]func(fr *http2.Framer, f *front, head []byte, i uint32) error{
		"rapid reset": func(fr *http2.Framer, f *front, head []byte, i uint32) error {
			id := 2*i + 1
			return errors.Join(fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head, EndHeaders: true}),
				fr.WriteData(id, true, []byte(f.body)), fr.WriteRSTStream(id, http2.ErrCodeCancel))
		},
		"CONTINUATION": func(fr *http2.Framer, _ *front, head []byte, i uint32) error {
			if i == 0 {
				return fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head})
			}
			return fr.WriteContinuation(1, false, []byte("\x00\x03abc\x03def"))
		},
		"PING":     func(fr *http2.Framer, _ *front, _ []byte, _ uint32) error { return fr.WritePing(false, [8]byte{}) },
		"SETTINGS": func(fr *http2.Framer, _ *front, _ []byte, _ uint32) error { return fr.WriteSettings() },
		"empty DATA": func(fr *http2.Framer, _ *front, head []byte, i uint32) error {
			if i == 0 {
				return fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head, EndHeaders: true})
			}
			return fr.WriteData(1, false, nil)
		},
		"padded DATA": func(fr *http2.Framer, _ *front, head []byte, i uint32) error {
			if i == 0 {
				return fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: head, EndHeaders: true})
			}
			return fr.WriteDataPadded(1, false, nil, make([]byte, 255))
		},
		"resets by the server": func(fr *http2.Framer, f *front, head []byte, i uint32) error {
			id := 2*i + 1
			return errors.Join(fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head, EndHeaders: true}),
				fr.WriteData(id, true, []byte(f.body)), fr.WriteWindowUpdate(id, 0))
		},
		"windows of a byte": func(fr *http2.Framer, f *front, head []byte, i uint32) error {
			id := 2*i + 1
			return errors.Join(fr.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize}),
				fr.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: head, EndHeaders: true}),
				fr.WriteData(id, true, []byte(f.body)), fr.WriteWindowUpdate(id, 1))
		},
		"heads without an end": func(fr *http2.Framer, _ *front, head []byte, i uint32) error {
			return fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: head, EndHeaders: true})
		},
		"fields out of the table": func(fr *http2.Framer, _ *front, head []byte, i uint32) error { // 12,000 of 3,900 bytes in each head
			var packed bytes.Buffer
			_ = hpack.NewEncoder(&packed).WriteField(hpack.HeaderField{Name: "x-a", Value: strings.Repeat("x", 3900)}) // to memory
			block := slices.Concat(head, packed.Bytes(), bytes.Repeat([]byte{0xbe}, 12_000))
			return fr.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: block, EndHeaders: true, EndStream: true})
		},
		"table sizes": func(fr *http2.Framer, _ *front, _ []byte, _ uint32) error {
			return fr.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 1 << 31})
		},
		"WINDOW_UPDATE": func(fr *http2.Framer, _ *front, _ []byte, _ uint32) error { return fr.WriteWindowUpdate(0, 1) },
		"unknown frames": func(fr *http2.Framer, _ *front, _ []byte, _ uint32) error {
			return fr.WriteRawFrame(0xfe, 0, 0, make([]byte, 1<<10))
		},
		"PRIORITY": func(fr *http2.Framer, _ *front, _ []byte, i uint32) error {
			return fr.WritePriority(2*i+1, http2.PriorityParam{StreamDep: 2*i + 3})
		},
	}
	for name, start := range fronts {
		t.Run(name, func(t *testing.T) {
			beside(t)
			f := start(t)
			f.serves(t)
			before, head := f.Metric(t, "go_goroutines"), encode(f)
			for name, write := range floods {
				var all sync.WaitGroup
				var held []net.Conn
				for range size(8, 3) {
					conn := dial(t, f.address, http2.ClientPreface)
					held = append(held, conn)
					all.Go(func() { // it reads nothing
						_ = conn.SetWriteDeadline(time.Now().Add(5 * time.Second))
						out := bufio.NewWriter(conn)
						fr := http2.NewFramer(out, nil)
						_ = fr.WriteSettings()
						for i := range uint32(frames) {
							if write(fr, f, head, i) != nil {
								return // the service has closed it, or takes no more
							}
						}
						_ = out.Flush()
					})
				}
				f.serves(t)
				all.Wait()
				f.serves(t)
				for _, conn := range held {
					_ = conn.Close()
				}
				t.Log(name)
			}
			f.isClean(t, before)
		})
	}
}

// TestHostileAnswers: engines whose answers are wrong or never end get no memory, and their clients an error or a
// connection that breaks, never an end that looks whole.
func TestHostileAnswers(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
	const whole = ok + "Content-Length: 2\r\n\r\n{}"
	var answer atomic.Pointer[[2]string] // what comes first, and what comes behind it without end
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				for {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					_, _ = io.Copy(io.Discard, r.Body)
					if r.URL.Path == "/tokenize" {
						const ids = `{"count":3,"max_model_len":4096,"tokens":[1,2,3]}`
						_, _ = fmt.Fprintf(conn, "%sContent-Length: %d\r\n\r\n%s", ok, len(ids), ids)
						continue
					}
					a := answer.Load()
					_, err = io.WriteString(conn, a[0])
					for more := strings.Repeat(a[1], 1+(64<<10)/max(1, len(a[1]))); err == nil && a[1] != ""; {
						_, err = io.WriteString(conn, more)
					}
					if !strings.HasPrefix(a[0], whole) && !strings.HasPrefix(a[0], "HTTP/1.1 204") && !strings.HasPrefix(a[0], "HTTP/1.1 304") {
						return
					}
				}
			}()
		}
	}()
	f := &front{path: "/v1/chat/completions", body: `{"model":"m","messages":[{"role":"user","content":"hello"}]}`}
	f.behind(t, "http://"+l.Addr().String())
	answer.Store(&[2]string{whole})
	f.serves(t)
	before := f.Metric(t, "go_goroutines")
	for name, a := range map[string][2]string{
		"1xx without end":          {"", "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"},
		"a status without end":     {"HTTP/1.1 200 ", "x"},
		"a field without end":      {ok + "X-A: ", "x"},
		"fields without end":       {ok, "X-A: b\r\n"},
		"trailers without end":     {ok + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", "X-A: b\r\n"},
		"an extension without end": {ok + "Transfer-Encoding: chunked\r\n\r\n2;", "x"},
		"zeros without end":        {ok + "Transfer-Encoding: chunked\r\n\r\n", "0"},
		"too short":                {ok + "Content-Length: 3\r\n\r\n{}", ""},
		"two lengths":              {ok + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", ""},
		"length and chunks":        {ok + "Content-Length: 12\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", ""}, // whole by either
		"a negative length":        {ok + "Content-Length: -1\r\n\r\n{}", ""},
		"a line within a field":    {ok + "X-A: b\rX-B: c\r\nContent-Length: 2\r\n\r\n{}", ""},
		"NUL in a field":           {ok + "X-A: \x00\r\nContent-Length: 2\r\n\r\n{}", ""},
		"a folded line":            {ok + "X-A: b\r\n c\r\nContent-Length: 2\r\n\r\n{}", ""},
		"101 nobody asked for":     {"HTTP/1.1 101 x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", ""},
	} {
		answer.Store(&a)
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				conn, err := net.Dial("tcp", f.address)
				if err != nil {
					t.Error(err)
					return
				}
				defer conn.Close()
				_ = conn.SetReadDeadline(time.Now().Add(e2e.Patience))
				_, _ = io.WriteString(conn, f.request(""))
				in := bufio.NewReader(conn)
				r, err := http.ReadResponse(in, &http.Request{Method: http.MethodPost})
				for err == nil && r.StatusCode == http.StatusEarlyHints {
					r, err = http.ReadResponse(in, &http.Request{Method: http.MethodPost})
				}
				if ne := net.Error(nil); errors.As(err, &ne) && ne.Timeout() {
					t.Errorf("%s: no answer", name)
				}
				if err != nil {
					return // cut
				}
				defer r.Body.Close()
				if _, err := io.Copy(io.Discard, r.Body); err == nil && r.StatusCode != http.StatusBadGateway {
					t.Errorf("%s: status %d, and its end looks whole", name, r.StatusCode)
				}
			})
		}
		all.Wait()
	}
	// What comes behind an answer is nobody's: not that of the next request, which may go over the same connection.
	for name, text := range map[string]string{
		"two answers":       whole + strings.Replace(whole, "{}", "[]", 1),
		"a body behind 204": "HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n" + strings.Replace(whole, "{}", "[]", 1),
		"a body behind 304": "HTTP/1.1 304 Not Modified\r\nContent-Length: 2\r\n\r\n" + strings.Replace(whole, "{}", "[]", 1),
	} {
		for range 20 {
			answer.Store(&[2]string{text})
			f.statuses(t, f.request(""), 1)
			answer.Store(&[2]string{whole})
			var a e2e.Answer
			e2e.Eventually(t, "a connection to the engine comes in time", func() (err error) {
				a, err = e2e.Call(t.Context(), f.HTTP, http.MethodPost, "http://"+f.address+f.path, []byte(f.body))
				late := a.Status == http.StatusBadGateway && strings.Contains(string(a.Body), "engine_unreachable") || a.Status == http.StatusServiceUnavailable
				if !e2e.Alone() && err == nil && late {
					err = errors.New(a.String())
				}
				return err
			})
			if a.Status != http.StatusOK || string(a.Body) != "{}" {
				t.Errorf("behind %s: %v", name, a)
			}
		}
	}
	f.HTTP.CloseIdleConnections()
	f.serves(t)
	f.isClean(t, before)
}
