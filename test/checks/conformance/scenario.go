package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Scenario is one case: a service of its own, started with Env and Args, and
// the steps that are played against it.
type Scenario struct {
	Name    string            `json:"name"`
	Tags    []string          `json:"tags"`
	Note    string            `json:"note"`
	Decided []string          `json:"decided"` // decisions of docs/reference/contract.md; none: as recorded
	Env     map[string]string `json:"env"`
	Args    []string          `json:"args"`
	Files   map[string]string `json:"files"`
	Peers   map[string]Peer   `json:"peers"`
	// StartFails says that the service must refuse to start.
	StartFails *StartFails `json:"start_fails"`
	Steps      []Step      `json:"steps"`

	text []byte // of the file, to find placeholders in
}

// Peer is the answer of an HTTP server to GET /dump.
type Peer struct {
	Status  int             `json:"status"` // 0: 200
	JSON    json.RawMessage `json:"json"`
	Raw     *string         `json:"raw"` // instead of JSON
	DelayMS int             `json:"delay_ms"`
}

// StartFails names the words that the output of a service which refuses to
// start has to hold.
type StartFails struct {
	Mentions []string `json:"mentions"`
	WithinMS int      `json:"within_ms"` // for a machine at rest: not held against a busy one
}

// Request is one HTTP request. At most one of Body, Raw and RawFill is given; a
// body has the content type application/json unless Headers say otherwise (a
// null there takes the header away).
type Request struct {
	Method  string             `json:"method"`
	Path    string             `json:"path"`
	Body    json.RawMessage    `json:"body"`
	Raw     *string            `json:"raw"`
	RawFill *Fill              `json:"raw_fill"`
	Headers map[string]*string `json:"headers"`
}

// Fill is a large body: Prefix, Fill Count times, Suffix.
type Fill struct {
	Prefix string `json:"prefix"`
	Fill   string `json:"fill"`
	Count  int    `json:"count"`
	Suffix string `json:"suffix"`
}

// Step is one step of a scenario. Exactly one of its actions is given; without
// any it is a plain request.
type Step struct {
	Request
	Note     string            `json:"note"`
	Expect   Expect            `json:"expect"`
	Save     map[string]string `json:"save"`   // name of the value → path in the answer
	Repeat   int               `json:"repeat"` // send it so often; 0: once (distribution: 100 times)
	WithinMS int               `json:"within_ms"`
	// IgnoreText marks a text that comes from a library. Nothing follows from it:
	// such a step expects no text.
	IgnoreText bool `json:"ignore_text"`

	Async   string `json:"async"`   // start the request under this name
	Join    string `json:"join"`    // expect the answer of the request of this name
	Pending string `json:"pending"` // the request of this name must still be open

	Parallel         *Parallel       `json:"parallel"`
	Distribution     *Distribution   `json:"distribution"`
	Publish          json.RawMessage `json:"publish"` // a Publish
	RestartPublisher string          `json:"restart_publisher"`
	ReplayServer     json.RawMessage `json:"replay_server"` // a ReplayServer
	ReplayRequests   *ReplayRequests `json:"replay_requests"`
	Subscribe        *Subscribe      `json:"subscribe"`
	Message          json.RawMessage `json:"message"` // a Message
	WaitUntil        *WaitUntil      `json:"wait_until"`
	SleepMS          *int            `json:"sleep_ms"`
}

// Parallel sends all requests at once and counts the answers.
type Parallel struct {
	Requests []struct {
		Request
		Times int `json:"times"` // 0: once
	} `json:"requests"`
	Statuses map[string]any `json:"statuses"` // status → count or [least, most]
	Tally    *struct {
		Path   string         `json:"path"`
		Counts map[string]any `json:"counts"` // value → count or [least, most]
	} `json:"tally"`
}

// Distribution counts how often each value came over the repeats of a request.
type Distribution struct {
	Path  string            `json:"path"`
	Range map[string][2]int `json:"range"` // value → least and most
}

// Publish is one KV event message. Without Seq it has the number after the last
// one.
type Publish struct {
	Endpoint      string  `json:"endpoint"`      // name of the publisher
	Subscriptions int     `json:"subscriptions"` // wait until this many were ever made
	Topic         string  `json:"topic"`
	Seq           *uint64 `json:"seq"`
	Frames        []Frame `json:"frames"` // raw frames instead of all that follows
	Payload
}

// Payload is the last frame of a KV event message, in one of three forms.
type Payload struct {
	PayloadHex *string `json:"payload_hex"`
	Batch      any     `json:"batch"`
	// A batch of [ts, events, dp_rank].
	TS     json.Number `json:"ts"`
	Events []any       `json:"events"`
	DPRank any         `json:"dp_rank"`
}

// Frame is one raw frame, in one of three forms.
type Frame struct {
	Text    *string `json:"text"`
	Hex     *string `json:"hex"`
	Msgpack any     `json:"msgpack"`
}

// ReplayServer sets what a replay endpoint answers from now on.
type ReplayServer struct {
	Endpoint string `json:"endpoint"` // name of the replay socket
	Layout   int    `json:"layout"`   // frames of an answer after the identity: 3 or 4 (0: 4)
	Topic    string `json:"topic"`
	Silent   bool   `json:"silent"`
	NoEnd    bool   `json:"no_end"`
	Messages []struct {
		Seq uint64 `json:"seq"`
		Payload
	} `json:"messages"`
}

// ReplayRequests compares the start numbers that a replay endpoint was asked
// for.
type ReplayRequests struct {
	Endpoint  string  `json:"endpoint"`
	Min       int     `json:"min"`
	Max       *int    `json:"max"`
	First     *uint64 `json:"first"`
	Has       *uint64 `json:"has"`
	TimeoutMS int     `json:"timeout_ms"` // for a machine at rest: not held against a busy one
}

// Subscribe listens to a PUB socket of the service.
type Subscribe struct {
	Name     string `json:"name"`
	Endpoint string `json:"endpoint"`
	Topic    string `json:"topic"`
	SettleMS int    `json:"settle_ms"` // 0: 700
}

// Message waits for a message that satisfies the checks, or with None makes
// sure that there is none.
type Message struct {
	From      string         `json:"from"`
	Checks    map[string]any `json:"checks"`
	None      bool           `json:"none"`
	TimeoutMS int            `json:"timeout_ms"` // of silence, if no message is wanted; 0: three seconds
}

// WaitUntil polls until the answer satisfies the checks.
type WaitUntil struct {
	Request
	Checks    map[string]any `json:"checks"`
	TimeoutMS int            `json:"timeout_ms"` // for a machine at rest: not held against a busy one
}

// Load reads one scenario. A field that this package does not know is an error:
// a scenario must not pass because half of it was ignored.
func Load(path string) (*Scenario, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read scenario: %w", err)
	}
	sc := &Scenario{text: text}
	if err := decodeStrict(text, sc); err != nil {
		return nil, fmt.Errorf("scenario %s: %w", path, err)
	}
	return sc, nil
}

// LoadDir reads the scenarios of a folder, sorted by name.
func LoadDir(dir string) ([]*Scenario, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.json"))
	if err != nil {
		return nil, fmt.Errorf("list scenarios: %w", err)
	}
	scenarios := make([]*Scenario, 0, len(paths))
	for _, p := range paths {
		sc, err := Load(p)
		if err != nil {
			return nil, err
		}
		scenarios = append(scenarios, sc)
	}
	return scenarios, nil
}

// decodeStrict decodes one JSON value. Numbers keep their text, so that 64-bit
// integers stay exact.
func decodeStrict(text []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	dec.DisallowUnknownFields()
	return dec.Decode(v)
}
