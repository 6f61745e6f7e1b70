package httpapi

import (
	"math"
	"net/http"
	"strconv"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/jsonscan"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/hashing"
)

// newConductorBody is newBody without a look at the content type: clients of
// the Conductor API do not all send one.
func newConductorBody[T any](shape *jsonscan.Object[T], reset func(*T), size func(*T) int) *body[T] {
	b := newBody(shape, reset, size)
	b.plain = true
	return b
}

// readName reads a name that may not be empty.
func readName(s *jsonscan.Scanner) string {
	name := s.String()
	if s.Err() == nil && name == "" {
		s.Fail("invalid value: empty string")
	}
	return name
}

// readTenant reads a tenant; the empty one is the default one.
func readTenant(s *jsonscan.Scanner) string {
	if tenant := s.String(); tenant != "" {
		return tenant
	}
	return catalog.DefaultName
}

func readBlockSize(s *jsonscan.Scanner) uint32 {
	return readRange(s, 1, math.MaxInt32)
}

// readRange reads an integer from low to high.
func readRange(s *jsonscan.Scanner, low, high uint32) uint32 {
	n := s.Uint32()
	if s.Err() == nil && (n < low || n > high) {
		s.Fail("integer out of range, expected " + strconv.FormatUint(uint64(low), 10) + " to " + strconv.FormatUint(uint64(high), 10))
	}
	return n
}

// refuse is a body with a fault that its shape does not tell.
func refuse(reason, field, text string) error {
	return &requestError{status: http.StatusBadRequest, text: text, reason: reason, field: field}
}

func refuseBoth(field, other string) error {
	return refuse(reasonExclusive, field, field+" and "+other+" exclude each other")
}

func publisherType(name string) (conductor.PublisherType, error) {
	t, ok := conductor.ParseType(name)
	if !ok {
		return 0, refuse(reasonUnknownType, "type", "type: expected `vLLM`, `SGLang`, `Mooncake` or `standard`")
	}
	return t, nil
}

// registrationBody is the body of /register.
type registrationBody struct {
	kind string
	reg  conductor.Registration
}

func resetRegistration(b *registrationBody) {
	*b = registrationBody{reg: conductor.Registration{
		Identity: conductor.Identity{Tenant: catalog.DefaultName}, HashSeed: hashing.Seed,
	}}
}

func (b *registrationBody) registration() (conductor.Registration, error) {
	t, err := publisherType(b.kind)
	b.reg.Type = t
	return b.reg, err
}

var registerShape = jsonscan.NewObject(
	must("endpoint", func(b *registrationBody) *string { return &b.reg.Endpoint }, (*jsonscan.Scanner).String),
	may("replay_endpoint", func(b *registrationBody) *string { return &b.reg.Replay }, (*jsonscan.Scanner).String),
	must("type", func(b *registrationBody) *string { return &b.kind }, (*jsonscan.Scanner).String),
	must("modelname", func(b *registrationBody) *string { return &b.reg.Model }, readName),
	may("lora_name", func(b *registrationBody) *string { return &b.reg.LoRA }, (*jsonscan.Scanner).String),
	may("tenant_id", func(b *registrationBody) *string { return &b.reg.Tenant }, readTenant),
	must("instance_id", func(b *registrationBody) *string { return &b.reg.Instance }, readName),
	must("block_size", func(b *registrationBody) *uint32 { return &b.reg.BlockSize }, readBlockSize),
	must("dp_rank", func(b *registrationBody) *uint32 { return &b.reg.Rank }, (*jsonscan.Scanner).Uint32),
	may("additionalsalt", func(b *registrationBody) *string { return &b.reg.Salt }, (*jsonscan.Scanner).String),
	may("hash_seed", func(b *registrationBody) *uint64 { return &b.reg.HashSeed }, (*jsonscan.Scanner).Uint64),
)

// unregistrationBody is the body of /unregister.
type unregistrationBody struct {
	kind *string
	by   conductor.Filter
}

func resetUnregistration(b *unregistrationBody) {
	*b = unregistrationBody{by: conductor.Filter{Tenant: catalog.DefaultName}}
}

func (b *unregistrationBody) filter() (conductor.Filter, error) {
	if b.kind != nil {
		t, err := publisherType(*b.kind)
		if err != nil {
			return conductor.Filter{}, err
		}
		b.by.Type = &t
	}
	return b.by, nil
}

var unregisterShape = jsonscan.NewObject(
	must("instance_id", func(b *unregistrationBody) *string { return &b.by.Instance }, readName),
	may("tenant_id", func(b *unregistrationBody) *string { return &b.by.Tenant }, readTenant),
	optionally("type", func(b *unregistrationBody) **string { return &b.kind }, (*jsonscan.Scanner).String),
	optionally("modelname", func(b *unregistrationBody) **string { return &b.by.Model }, (*jsonscan.Scanner).String),
	optionally("lora_name", func(b *unregistrationBody) **string { return &b.by.LoRA }, (*jsonscan.Scanner).String),
	optionally("additionalsalt", func(b *unregistrationBody) **string { return &b.by.Salt }, (*jsonscan.Scanner).String),
	optionally("endpoint", func(b *unregistrationBody) **string { return &b.by.Endpoint }, (*jsonscan.Scanner).String),
	optionally("replay_endpoint", func(b *unregistrationBody) **string { return &b.by.Replay }, (*jsonscan.Scanner).String),
	optionally("block_size", func(b *unregistrationBody) **uint32 { return &b.by.BlockSize }, readBlockSize),
	optionally("dp_rank", func(b *unregistrationBody) **uint32 { return &b.by.Rank }, (*jsonscan.Scanner).Uint32),
	optionally("hash_seed", func(b *unregistrationBody) **uint64 { return &b.by.HashSeed }, (*jsonscan.Scanner).Uint64),
)

// questionBody is the body of /query, /query_by_hash and /diagnose, with room
// for the answer to the former two.
type questionBody struct {
	req       conductor.Question
	loraID    int64
	hasLoRAID bool
	// Which of the lists came; all hashes go to req.
	hasTokens, hasSequence, hasAlias bool

	maxBlocks int
	answer    conductor.Answer
}

// newQuestionBody is newConductorBody for one of the shapes of a questionBody.
func newQuestionBody(shape *jsonscan.Object[questionBody]) *body[questionBody] {
	return newConductorBody(shape, resetQuestion, questionSize)
}

func resetQuestion(b *questionBody) {
	b.answer.Reset()
	*b = questionBody{
		req: conductor.Question{
			Identity: conductor.Identity{Tenant: catalog.DefaultName},
			Tokens:   b.req.Tokens[:0],
			Hashes:   b.req.Hashes[:0],
		},
		maxBlocks: conductor.DefaultDiagnosedBlocks,
		answer:    b.answer,
	}
}

func questionSize(b *questionBody) int {
	size := 4*cap(b.req.Tokens) + 8*cap(b.req.Hashes)
	rows := b.answer.Instances
	for _, row := range rows[:cap(rows)] { // all that former answers have filled
		size += 72 + 8*cap(row.Media) + 16*cap(row.Ranks)
	}
	return size
}

// settle checks and applies what only several members together say. A body
// without any list lacks the wanted one.
func (b *questionBody) settle(wanted string) error {
	switch {
	case b.hasLoRAID && b.req.LoRA != "":
		return refuseBoth("lora_id", "lora_name")
	case b.hasSequence && b.hasAlias:
		return refuseBoth("block_hash", "seq_hashes")
	case b.hasTokens && b.hasSequence:
		return refuseBoth("seq_hashes", "token_ids")
	case b.hasTokens && b.hasAlias:
		return refuseBoth("block_hash", "token_ids")
	case !b.hasTokens && !b.hasSequence && !b.hasAlias:
		return refuse(reasonMissing, wanted, shapePrefix+"missing field `"+wanted+"`")
	}
	// Adapters are numbered from 1 (vllm 0.33, LoRARequest); clients that always
	// send the member mean the base model by 0 or -1.
	if b.loraID > 0 {
		b.req.LoRA = strconv.FormatInt(b.loraID, 10)
	}
	b.req.ByHash = !b.hasTokens
	return nil
}

// queryFields are the members that all questions have.
func queryFields(further ...jsonscan.Field[questionBody]) []jsonscan.Field[questionBody] {
	return append([]jsonscan.Field[questionBody]{
		must("model", func(b *questionBody) *string { return &b.req.Model }, readName),
		may("lora_name", func(b *questionBody) *string { return &b.req.LoRA }, (*jsonscan.Scanner).String),
		{Name: "lora_id", Read: func(s *jsonscan.Scanner, b *questionBody) {
			if !s.Null() {
				b.loraID, b.hasLoRAID = int64(s.Hash64()), true
			}
		}},
		may("tenant_id", func(b *questionBody) *string { return &b.req.Tenant }, readTenant),
		may("instance_id", func(b *questionBody) *string { return &b.req.Instance }, (*jsonscan.Scanner).String),
		may("cache_salt", func(b *questionBody) *string { return &b.req.Salt }, (*jsonscan.Scanner).String),
		must("block_size", func(b *questionBody) *uint32 { return &b.req.BlockSize }, readBlockSize),
	}, further...)
}

func readQuestionTokens(s *jsonscan.Scanner, b *questionBody) {
	b.req.Tokens, b.hasTokens = s.AppendUint32s(b.req.Tokens), true
}

// hashesField describes one of the two names of the list of hashes.
func hashesField(name string, given func(*questionBody) *bool) jsonscan.Field[questionBody] {
	return jsonscan.Field[questionBody]{Name: name, Read: func(s *jsonscan.Scanner, b *questionBody) {
		if !s.Null() {
			b.req.Hashes, *given(b) = s.AppendHash64s(b.req.Hashes), true
		}
	}}
}

var (
	sequenceField = hashesField("seq_hashes", func(b *questionBody) *bool { return &b.hasSequence })
	aliasField    = hashesField("block_hash", func(b *questionBody) *bool { return &b.hasAlias }) // of earlier drafts

	queryShape = jsonscan.NewObject(queryFields(
		jsonscan.Field[questionBody]{Name: "token_ids", Required: true, Read: readQuestionTokens},
	)...)
	queryByHashShape       = jsonscan.NewObject(queryFields(sequenceField, aliasField)...)
	conductorDiagnoseShape = jsonscan.NewObject(queryFields(
		sequenceField, aliasField,
		jsonscan.Field[questionBody]{Name: "token_ids", Read: func(s *jsonscan.Scanner, b *questionBody) {
			if !s.Null() {
				readQuestionTokens(s, b)
			}
		}},
		may("max_blocks", func(b *questionBody) *int { return &b.maxBlocks }, readMaxBlocks),
	)...)
)
