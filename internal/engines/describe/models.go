package describe

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/select-service/select-service/pkg/catalog"
)

// Models is what an engine serves.
type Models struct {
	Model    string
	Adapters []string // the LoRA adapters of the model, sorted; not nil
	// Aliases are further names of the model: entries with its root (vLLM's --served-model-name).
	Aliases []string
	// Further are other models.
	Further []string
	// Owner is the owned_by of the model: the engine, as far as engines tell.
	Owner string
	// Length is the context length of the model in tokens, 0 if it is not told.
	Length uint32
}

const (
	modelsPath  = "/v1/models"
	maxAdapters = 1024 // of one worker, as of its record
	maxAliases  = 64
)

// Models asks GET /v1/models: the first entry without a parent is the model, and those whose
// parent is such an entry are adapters. An error is an *Error.
func (c *Client) Models(ctx context.Context, base string) (Models, error) {
	var list modelList
	var m Models
	err := c.queryJSON(ctx, base, modelsPath, &list)
	if err != nil {
		return m, err
	}
	if m, err = list.models(); err != nil {
		return m, notUnderstood(base, modelsPath, err)
	}
	return m, nil
}

// modelList is the answer of OpenAI's API, with the parents of vLLM and SGLang.
type modelList struct {
	Data []struct {
		ID     string  `json:"id"`
		Parent *string `json:"parent"`
		Root   string  `json:"root"` // what the engine has loaded under this name
		Owner  string  `json:"owned_by"`
		// Length is the context length of the model in tokens (vLLM and SGLang).
		Length *int32 `json:"max_model_len"`
	} `json:"data"`
}

var errNoModel = errors.New("it lists no model")

func (l *modelList) models() (Models, error) {
	m := Models{Adapters: []string{}}
	var bases []string
	roots := make(map[string]string)
	isBase := make(map[string]bool)
	for _, entry := range l.Data {
		if entry.Parent != nil {
			continue
		}
		if err := checkName(entry.ID); err != nil {
			return Models{}, err
		}
		if !isBase[entry.ID] {
			if len(bases) == 0 {
				m.Owner, m.Length = entry.Owner, l.length(entry.ID)
			}
			bases, isBase[entry.ID], roots[entry.ID] = append(bases, entry.ID), true, entry.Root
		}
	}
	if len(bases) == 0 {
		return Models{}, errNoModel
	}
	for _, entry := range l.Data {
		if entry.Parent == nil || !isBase[*entry.Parent] {
			continue
		}
		if err := checkName(entry.ID); err != nil {
			return Models{}, err
		}
		m.Adapters = append(m.Adapters, entry.ID)
	}
	slices.Sort(m.Adapters)
	m.Adapters = slices.Compact(m.Adapters)
	if len(m.Adapters) > maxAdapters {
		return Models{}, fmt.Errorf("it lists %d adapters, the maximum is %d", len(m.Adapters), maxAdapters)
	}
	m.Model = bases[0]
	for _, name := range bases[1:] {
		if roots[name] != "" && roots[name] == roots[m.Model] && len(m.Aliases) < maxAliases {
			m.Aliases = append(m.Aliases, name)
		} else {
			m.Further = append(m.Further, name)
		}
	}
	return m, nil
}

// length returns the context length of the model with a name, 0 if none is told.
func (l *modelList) length(name string) uint32 {
	for _, entry := range l.Data {
		if entry.ID == name && entry.Length != nil && *entry.Length > 0 {
			return uint32(*entry.Length)
		}
	}
	return 0
}

var errNoLength = errors.New("the list of models does not have the model's max_model_len")

// Length asks GET /v1/models of the engine at a URL, or at host:port, for the context length in tokens
// of the model with a name. An error is an *Error.
func (c *Client) Length(ctx context.Context, engine, name string) (tokens int, err error) {
	if !strings.Contains(engine, "://") {
		engine = "http://" + engine
	}
	var list modelList
	if err := c.queryJSON(ctx, engine, modelsPath, &list); err != nil {
		return 0, err
	}
	if tokens = int(list.length(name)); tokens == 0 {
		return 0, notUnderstood(engine, modelsPath, errNoLength)
	}
	return tokens, nil
}

func checkName(id string) error {
	switch {
	case id == "":
		return errors.New("it lists a model without an id")
	case len(id) > catalog.MaxName:
		return fmt.Errorf("it lists a model whose id has %d bytes, the maximum is %d", len(id), catalog.MaxName)
	}
	return nil
}

// notUnderstood is the error of an answer that says something impossible.
func notUnderstood(base, path string, err error) error {
	return &Error{URL: join(base, path), Status: 200, Err: err}
}
