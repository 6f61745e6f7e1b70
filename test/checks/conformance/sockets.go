package conformance

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/select-service/select-service/test/helpers/zmqtest"
)

const (
	silence    = 3 * time.Second        // after which no message comes any more
	settle     = 700 * time.Millisecond // a subscription takes effect on the other side, once connected
	replayPoll = 20 * time.Millisecond
)

// publisher counts the sequence numbers of an engine.
type publisher struct {
	*zmqtest.Publisher
	next uint64
}

// filled decodes a step after its placeholders were filled.
func filled[T any](p *player, raw json.RawMessage) (T, error) {
	var v T
	text, err := p.fillText(raw)
	if err != nil {
		return v, err
	}
	return v, decodeStrict(text, &v)
}

func (p *player) publish(raw json.RawMessage) []string {
	spec, err := filled[Publish](p, raw)
	if err != nil {
		return []string{err.Error()}
	}
	pub := p.publishers[spec.Endpoint]
	if err := pub.Ready(max(spec.Subscriptions, 1), patience); err != nil {
		return []string{"no subscriber: " + err.Error()}
	}
	if spec.Frames != nil {
		frames, err := rawFrames(spec.Frames)
		if err != nil {
			return []string{err.Error()}
		}
		pub.Send(frames...)
		return nil
	}
	payload, err := spec.encode()
	if err != nil {
		return []string{err.Error()}
	}
	seq := pub.next
	if spec.Seq != nil {
		seq = *spec.Seq
	}
	pub.next = seq + 1
	pub.Send([]byte(spec.Topic), zmqtest.Seq(seq), payload)
	return nil
}

func (p *player) restart(name string) []string {
	pub := p.publishers[name]
	if pub == nil {
		return []string{"no publisher has this name"}
	}
	pub.Restart()
	pub.next = 0
	return nil
}

func (p *player) setReplay(raw json.RawMessage) []string {
	spec, err := filled[ReplayServer](p, raw)
	if err != nil {
		return []string{err.Error()}
	}
	ring := make([]zmqtest.Kept, len(spec.Messages))
	for i, m := range spec.Messages {
		payload, err := m.encode()
		if err != nil {
			return []string{err.Error()}
		}
		ring[i] = zmqtest.Kept{Seq: m.Seq, Payload: payload}
	}
	r := p.replays[spec.Endpoint]
	r.SetTopic(spec.Layout != 3)
	r.SetNoEnd(spec.NoEnd)
	r.SetRing(ring...)
	r.SetSilent(spec.Silent)
	return nil
}

func (p *player) replayRequests(w *ReplayRequests) []string {
	r := p.replays[w.Endpoint]
	if r == nil {
		return []string{"no replay endpoint has this name"}
	}
	deadline := time.Now().Add(patience)
	for {
		got := r.Requests()
		ok := len(got) >= w.Min &&
			(w.First == nil || len(got) > 0 && got[0] == *w.First) &&
			(w.Has == nil || slices.Contains(got, *w.Has))
		if ok && (w.Max == nil || len(got) <= *w.Max) {
			return nil
		}
		if ok || time.Now().After(deadline) {
			return []string{fmt.Sprintf("asked for a replay from %v, want %s", got, show(w, 200))}
		}
		time.Sleep(replayPoll)
	}
}

func (p *player) subscribe(s *Subscribe) []string {
	l := zmqtest.Listen(p.tb, p.fill(s.Endpoint), s.Topic)
	p.tb.Cleanup(func() { _ = l.Close() })
	p.listeners[s.Name] = l
	p.settle(milliseconds(s.SettleMS, settle))
	return nil
}

// settle waits until the server has had this time for what came before. A moment in which the server does not answer, because the
// machine or it stands still, counts little.
func (p *player) settle(wait time.Duration) {
	const step = 50 * time.Millisecond
	for had := time.Duration(0); had < wait; {
		began := time.Now()
		time.Sleep(step)
		if _, err := p.client.do(message{method: "GET", path: "/health"}, patience); err == nil && time.Since(began) < 2*step {
			had += step
		} else {
			had += step / 10
		}
	}
}

func (p *player) receive(raw json.RawMessage) []string {
	spec, err := filled[Message](p, raw)
	if err != nil {
		return []string{err.Error()}
	}
	l := p.listeners[spec.From]
	if l == nil {
		return []string{"no subscription has this name"}
	}
	last := "nothing came"
	wait := patience
	if spec.None {
		wait = milliseconds(spec.TimeoutMS, silence)
	}
	for deadline := time.Now().Add(wait); ; {
		frames, err := l.Receive(max(time.Until(deadline), 0))
		if err != nil {
			if spec.None {
				return nil
			}
			return []string{"no such message: " + last}
		}
		doc, err := describe(frames)
		if err != nil {
			last = err.Error()
			continue
		}
		faults := checkAll(spec.Checks, doc)
		switch {
		case len(faults) > 0:
			last = strings.Join(faults, "; ")
		case spec.None:
			return []string{"unwanted message " + show(doc, 200)}
		default:
			return nil
		}
	}
}

// describe gives a received message the form of an answer.
func describe(frames [][]byte) (any, error) {
	var payload any
	if err := msgpack.Unmarshal(frames[len(frames)-1], &payload); err != nil {
		return nil, fmt.Errorf("payload: %w", err)
	}
	text, err := json.Marshal(map[string]any{
		"frames": len(frames), "topic": strings.ToValidUTF8(string(frames[0]), "\uFFFD"), "payload": payload,
	})
	if err != nil {
		return nil, fmt.Errorf("payload: %w", err)
	}
	return parse(text)
}

func rawFrames(specs []Frame) ([][]byte, error) {
	frames := make([][]byte, len(specs))
	for i, f := range specs {
		var err error
		switch {
		case f.Text != nil:
			frames[i] = []byte(*f.Text)
		case f.Hex != nil:
			frames[i], err = hex.DecodeString(*f.Hex)
		default:
			frames[i], err = encodeMsgpack(f.Msgpack)
		}
		if err != nil {
			return nil, fmt.Errorf("frame %d: %w", i, err)
		}
	}
	return frames, nil
}
