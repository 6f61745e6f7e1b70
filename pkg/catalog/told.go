package catalog

import (
	"maps"
	"slices"
)

// toldValue is what an engine may say of itself: where a description has it, and what it fills in of a
// record. Fields that come with one answer are one value.
type toldValue struct {
	// fields are the members by which From and Unknown name it.
	fields []string
	// lacks reports whether an earlier description knows more of it.
	lacks func(d, before *Description) bool
	take  func(d, from *Description)
	same  func(a, b *Description) bool
	// fill fills in what a record, which is as given, leaves out; nil: it is not put into records.
	fill func(r *Record, t *Description)
}

// toldValues has a row for each value, in the order in which they are filled in and taken over.
var toldValues = [...]toldValue{
	{
		fields: []string{FieldModel},
		lacks:  func(d, _ *Description) bool { return d.Model == "" },
		take:   func(d, from *Description) { d.Model = from.Model },
		same:   func(a, b *Description) bool { return a.Model == b.Model },
		fill: func(r *Record, t *Description) {
			if r.Describe.Model && t.Model != "" {
				r.Scope.Model = t.Model
				r.filled(FieldModel, t.From[FieldModel])
			}
		},
	},
	{
		fields: []string{FieldAdapters, FieldMaxModelLen},
		lacks:  func(d, _ *Description) bool { return d.Adapters == nil },
		take: func(d, from *Description) {
			d.Adapters, d.Aliases, d.MaxModelLen = from.Adapters, from.Aliases, from.MaxModelLen
		},
		same: func(a, b *Description) bool {
			return slices.Equal(a.Adapters, b.Adapters) && slices.Equal(a.Aliases, b.Aliases) && slices.Equal(a.Further, b.Further) && a.MaxModelLen == b.MaxModelLen
		},
		fill: func(r *Record, t *Description) {
			if r.Adapters == nil && len(t.Adapters) > 0 {
				r.Adapters = t.Adapters
				r.filled(FieldAdapters, t.From[FieldAdapters])
			}
			if r.Aliases = AliasesOf(r.Scope.Model, t.Model, t.Aliases); len(r.Aliases) > 0 {
				r.filled(FieldAliases, t.From[FieldModel])
			}
			fillScalar(r, t, FieldMaxModelLen, &r.MaxModelLen, &t.MaxModelLen)
		},
	},
	{
		fields: []string{FieldBlockSize},
		lacks:  func(d, _ *Description) bool { return d.BlockSize == 0 },
		take:   func(d, from *Description) { d.BlockSize, d.Corrected = from.BlockSize, from.Corrected },
		same:   func(a, b *Description) bool { return a.BlockSize == b.BlockSize && a.Corrected == b.Corrected },
		fill:   func(r *Record, t *Description) { fillScalar(r, t, FieldBlockSize, &r.BlockSize, &t.BlockSize) },
	},
	{
		fields: []string{FieldStartRank, FieldSize},
		lacks:  func(d, _ *Description) bool { return d.Size == 0 },
		take:   func(d, from *Description) { d.StartRank, d.Size = from.StartRank, from.Size },
		same:   func(a, b *Description) bool { return a.StartRank == b.StartRank && a.Size == b.Size },
		fill: func(r *Record, t *Description) {
			if r.Size == nil && t.Size > 0 {
				fillScalar(r, t, FieldStartRank, &r.StartRank, &t.StartRank)
				fillScalar(r, t, FieldSize, &r.Size, &t.Size)
			}
		},
	},
	{ // told in blocks of the block size
		fields: []string{FieldTotalKVBlocks},
		lacks: func(d, before *Description) bool {
			return d.TotalKVBlocks == 0 && d.BlockSize == before.BlockSize
		},
		take: func(d, from *Description) { d.TotalKVBlocks, d.KVTokens = from.TotalKVBlocks, from.KVTokens },
		same: func(a, b *Description) bool { return a.TotalKVBlocks == b.TotalKVBlocks && a.KVTokens == b.KVTokens },
		fill: func(r *Record, t *Description) { // of others it counts for thresholds only, see KVBlocks
			if r.Source.KindOrAPI().Discovered() {
				fillScalar(r, t, FieldTotalKVBlocks, &r.TotalKVBlocks, &t.TotalKVBlocks)
			}
		},
	},
	{
		fields: []string{FieldRole},
		lacks:  never,
		same:   func(a, b *Description) bool { return a.Role == b.Role },
		fill: func(r *Record, t *Description) {
			if !r.Source.KindOrAPI().Discovered() { // the labels of a pod say its role, or that it has both
				fillScalar(r, t, FieldRole, &r.Role, &t.Role)
			}
		},
	},
	{
		fields: []string{FieldEagle},
		lacks:  never,
		same:   func(a, b *Description) bool { return a.Eagle == b.Eagle },
		fill:   func(r *Record, t *Description) { fillScalar(r, t, FieldEagle, &r.IsEagle, &t.Eagle) },
	},
	{
		fields: []string{FieldMaxNumBatchedTokens},
		lacks:  never,
		same:   func(a, b *Description) bool { return a.MaxNumBatchedTokens == b.MaxNumBatchedTokens },
	},
	{
		fields: []string{FieldKVEventsEndpoints, FieldReplayEndpoints, FieldLoadEndpoints},
		lacks:  func(d, before *Description) bool { return len(d.KVEventsEndpoints) < len(before.KVEventsEndpoints) },
		take: func(d, from *Description) {
			d.KVEventsEndpoints, d.ReplayEndpoints, d.LoadEndpoints = from.KVEventsEndpoints, from.ReplayEndpoints, from.LoadEndpoints
		},
		same: func(a, b *Description) bool {
			return maps.Equal(a.KVEventsEndpoints, b.KVEventsEndpoints) && maps.Equal(a.ReplayEndpoints, b.ReplayEndpoints) && maps.Equal(a.LoadEndpoints, b.LoadEndpoints)
		},
		fill: func(r *Record, t *Description) {
			if r.Publishes() {
				r.fillEndpoints(t.KVEventsEndpoints, &r.KVEventsEndpoint, &r.KVEventsEndpoints, FieldKVEventsEndpoint, FieldKVEventsEndpoints)
				r.fillEndpoints(t.ReplayEndpoints, &r.ReplayEndpoint, &r.ReplayEndpoints, FieldReplayEndpoint, FieldReplayEndpoints)
			}
			r.fillEndpoints(t.LoadEndpoints, &r.LoadEndpoint, &r.LoadEndpoints, FieldLoadEndpoint, FieldLoadEndpoints)
		},
	},
}

// never is for values that an engine tells with all others, or not at all.
func never(_, _ *Description) bool { return false }

// filled notes that a member of the record is the engine's, and where it comes from.
func (r *Record) filled(field, from string) { r.Describe.Filled[field] = from }

// fillScalar fills in a scalar that the record leaves out and the engine tells.
func fillScalar[T comparable](r *Record, t *Description, field string, in **T, told *T) {
	var none T
	if *in == nil && *told != none {
		*in = told
		r.filled(field, t.From[field])
	}
}

// fill fills in what the record, which is as given, leaves out.
func (r *Record) fill() {
	t := r.Describe.Told
	if t == nil {
		return
	}
	r.Describe.Filled = make(map[string]string)
	for i := range toldValues {
		if fill := toldValues[i].fill; fill != nil {
			fill(r, t)
		}
	}
}

// orElse returns the description with the values of an earlier one where the engine did not
// answer.
func (d *Description) orElse(before *Description) *Description {
	if before == nil || !d.Unanswered {
		return d
	}
	all := *d
	all.From, all.Unknown = maps.Clone(d.From), maps.Clone(d.Unknown)
	for i := range toldValues {
		v := &toldValues[i]
		if !v.lacks(&all, before) {
			continue
		}
		v.take(&all, before)
		for _, field := range v.fields {
			if origin, known := before.From[field]; known {
				all.From[field] = origin
			}
			delete(all.Unknown, field)
		}
	}
	return &all
}

// equal reports whether two descriptions, which may be nil, say the same.
func (d *Description) equal(o *Description) bool {
	if d == nil || o == nil {
		return d == o
	}
	for i := range toldValues {
		if !toldValues[i].same(d, o) {
			return false
		}
	}
	return d.Engine == o.Engine && d.Version == o.Version && maps.Equal(d.From, o.From) && maps.Equal(d.Unknown, o.Unknown)
}
