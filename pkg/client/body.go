package client

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/select-service/select-service/internal/codec/bodyscan"
	"github.com/select-service/select-service/internal/codec/msgpack"
)

// content is the body of a request. If text is nil, there is no body.
type content struct {
	text    []byte
	msgpack bool // else JSON
}

// encode encodes the body of a call: in msgpack if it has a prompt and the service has
// not refused msgpack, else in JSON.
func (c *Client) encode(k call) (content, error) {
	if k.body == nil {
		return content{}, nil
	}
	batch, batched := k.body.(batchBody)
	switch {
	case c.onlyJSON.Load() || k.prompt == nil && !batched:
		text, err := json.Marshal(k.body)
		return content{text: text}, err
	case batched:
		text, err := batch.pack()
		return content{text, true}, err
	}
	text, err := pack(k.body, k.prompt)
	return content{text, true}, err
}

// refusesFormat reports whether a call was refused because of the type of its body.
func refusesFormat(err error) bool {
	answer, ok := errors.AsType[*Error](err)
	return ok && answer.Status == http.StatusUnsupportedMediaType
}

// pack encodes a body in msgpack. The lists of its prompt, which must be part of body,
// become byte strings of little-endian words; the other members are as in JSON. During
// the call the prompt's lists are nil.
func pack(body any, prompt *Prompt) ([]byte, error) {
	p := *prompt
	prompt.TokenIDs, prompt.BlockHashes, prompt.SequenceHashes = nil, nil, nil
	rest, err := json.Marshal(body)
	*prompt = p
	if err != nil {
		return nil, err
	}
	members, n, err := bodyscan.AppendMembers(make([]byte, 0, len(rest)+4*len(p.TokenIDs)+8*(len(p.BlockHashes)+len(p.SequenceHashes))+64), rest)
	if err != nil {
		return nil, err
	}
	if p.TokenIDs != nil {
		n++
		members = msgpack.AppendBytesLen(msgpack.AppendText(members, "token_ids"), 4*len(p.TokenIDs))
		for _, v := range p.TokenIDs {
			members = binary.LittleEndian.AppendUint32(members, v)
		}
	}
	for _, list := range []struct {
		name   string
		hashes []int64
	}{{"block_hashes", p.BlockHashes}, {"sequence_hashes", p.SequenceHashes}} {
		if list.hashes == nil {
			continue
		}
		n++
		members = msgpack.AppendBytesLen(msgpack.AppendText(members, list.name), 8*len(list.hashes))
		for _, v := range list.hashes {
			members = binary.LittleEndian.AppendUint64(members, uint64(v))
		}
	}
	return msgpack.InsertMapLen(members, 0, n), nil
}
