package conformance

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/vmihailenco/msgpack/v5"
)

// encode gives the bytes of a payload.
func (p *Payload) encode() ([]byte, error) {
	if p.PayloadHex != nil {
		b, err := hex.DecodeString(*p.PayloadHex)
		if err != nil {
			return nil, fmt.Errorf("payload_hex: %w", err)
		}
		return b, nil
	}
	if p.Batch != nil {
		return encodeMsgpack(p.Batch)
	}
	ts := p.TS
	if ts == "" {
		ts = "1.0"
	}
	events := p.Events
	if events == nil {
		events = []any{}
	}
	return encodeMsgpack([]any{ts, events, p.DPRank})
}

// encodeMsgpack encodes a value: integers in the shortest form, other numbers
// as doubles, {"$bytes": hex} as a byte string.
func encodeMsgpack(v any) ([]byte, error) {
	var b bytes.Buffer
	if err := appendMsgpack(msgpack.NewEncoder(&b), v); err != nil {
		return nil, fmt.Errorf("encode msgpack: %w", err)
	}
	return b.Bytes(), nil
}

func appendMsgpack(enc *msgpack.Encoder, v any) error {
	switch v := v.(type) {
	case nil:
		return enc.EncodeNil()
	case bool:
		return enc.EncodeBool(v)
	case string:
		return enc.EncodeString(v)
	case json.Number:
		return appendNumber(enc, v)
	case []any:
		if err := enc.EncodeArrayLen(len(v)); err != nil {
			return err
		}
		for _, x := range v {
			if err := appendMsgpack(enc, x); err != nil {
				return err
			}
		}
		return nil
	case map[string]any:
		return appendMap(enc, v)
	}
	return fmt.Errorf("%T is no JSON value", v)
}

func appendMap(enc *msgpack.Encoder, v map[string]any) error {
	if text, ok := v["$bytes"].(string); ok && len(v) == 1 {
		b, err := hex.DecodeString(text)
		if err != nil {
			return fmt.Errorf("$bytes: %w", err)
		}
		return enc.EncodeBytes(b)
	}
	if err := enc.EncodeMapLen(len(v)); err != nil {
		return err
	}
	for _, k := range slices.Sorted(maps.Keys(v)) {
		if err := enc.EncodeString(k); err != nil {
			return err
		}
		if err := appendMsgpack(enc, v[k]); err != nil {
			return err
		}
	}
	return nil
}

func appendNumber(enc *msgpack.Encoder, n json.Number) error {
	if !isInteger(n) {
		f, err := n.Float64()
		if err != nil {
			return err
		}
		return enc.EncodeFloat64(f)
	}
	if u, err := strconv.ParseUint(string(n), 10, 64); err == nil {
		return enc.EncodeUint(u)
	}
	i, err := n.Int64()
	if err != nil {
		return err
	}
	return enc.EncodeInt(i)
}
