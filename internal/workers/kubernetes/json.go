package kubernetes

import "encoding/json"

// StatusJSON returns the answer of GET /kubernetes. A nil Discovery is not enabled.
func (d *Discovery) StatusJSON() []byte {
	if d == nil {
		return []byte(`{"enabled":false}`)
	}
	text, err := json.Marshal(d.Status())
	if err != nil {
		return []byte(`{"enabled":true}`)
	}
	return text
}

// ReadyJSON returns the member kubernetes of GET /ready, nil if d is nil.
func (d *Discovery) ReadyJSON() []byte {
	if d == nil {
		return nil
	}
	type source struct {
		Name  string `json:"name"`
		State State  `json:"state"`
	}
	st := d.Status()
	shown := struct {
		Synced  bool     `json:"synced"`
		Sources []source `json:"sources"`
	}{Synced: st.Synced, Sources: []source{}}
	for _, s := range st.Sources {
		shown.Sources = append(shown.Sources, source{s.Name, s.State})
	}
	text, _ := json.Marshal(shown) // it has nothing that cannot be written
	return text
}
