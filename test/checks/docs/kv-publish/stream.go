package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/test/helpers/kvpub"
)

// maxBody is the longest message that is taken, as JSON.
const maxBody = 8 << 20

// stream publishes what is posted to it.
type stream struct {
	*kvpub.Publisher

	mu   sync.Mutex // guards next; held while a message is numbered and published
	next uint64     // number of the next message
}

func openStream() (*stream, error) {
	p, err := kvpub.Open(kvpub.Options{Bind: "127.0.0.1"})
	return &stream{Publisher: p}, err
}

// ServeHTTP publishes the body as one message and answers its number.
func (s *stream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	payload, err := encode(http.MaxBytesReader(w, r.Body, maxBody), time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	n := s.next
	s.next++
	s.Publish(payload)
	s.mu.Unlock()
	fmt.Fprintf(w, "{\"sequence\":%d}\n", n)
}

// encode turns one JSON value into a message: an array of events into a batch
// [seconds since 1970, events, nil], an object into itself.
func encode(body io.Reader, now time.Time) ([]byte, error) {
	dec := json.NewDecoder(body)
	dec.UseNumber() // hashes do not fit into a float64
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, fmt.Errorf("read JSON: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("read JSON: something follows the value")
	}
	v, err := plain(v)
	if err != nil {
		return nil, err
	}
	switch events := v.(type) {
	case []any:
		v = []any{float64(now.UnixNano()) / 1e9, events, nil}
	case map[string]any:
	default:
		return nil, errors.New("want an array of events, or one event as an object")
	}
	var out bytes.Buffer
	enc := msgpack.NewEncoder(&out)
	enc.UseCompactInts(true)
	enc.SetSortMapKeys(true)
	err = enc.Encode(v)
	return out.Bytes(), err
}

// plain replaces the numbers in v by uint64, int64 or float64.
func plain(v any) (_ any, err error) {
	switch v := v.(type) {
	case json.Number:
		return number(v)
	case []any:
		for i := range v {
			if v[i], err = plain(v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for k := range v {
			if v[k], err = plain(v[k]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}

func number(n json.Number) (any, error) {
	if u, err := strconv.ParseUint(n.String(), 10, 64); err == nil {
		return u, nil
	}
	if i, err := n.Int64(); err == nil {
		return i, nil
	}
	return n.Float64()
}
