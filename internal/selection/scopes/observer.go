package scopes

import (
	"github.com/select-service/select-service/internal/selection/approximate"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
	"github.com/select-service/select-service/pkg/recovery"
)

// observer is a scope's index as engine events write it. It does what follows from an event
// outside the index.
type observer struct {
	*recovery.Gate
	predictions *approximate.Scope // that are beside the index; nil: none
	watches     *storedWatches     // nil: WatchStored is off
}

var _ kvevents.Index = observer{}

// Clear implements kvevents.Index. A rank that cleared its cache or restarted has lost what was
// predicted too.
func (o observer) Clear(slot uint32) {
	o.Gate.Clear(slot)
	if o.predictions != nil {
		o.predictions.Clear(slot)
	}
}

// Store implements kvevents.Index. The blocks may complete a prompt that is watched.
func (o observer) Store(ev *indexer.Store) indexer.Outcome {
	out := o.Gate.Store(ev)
	if ev.Tier == indexer.Device && o.watches.any() {
		o.watches.noteStored(ev)
	}
	return out
}

// StoreInGroup implements kvevents.Index. The group may be the last one that stores a prompt.
func (o observer) StoreInGroup(ev *indexer.GroupStore) bool {
	noted := o.Gate.StoreInGroup(ev)
	if !ev.Main && o.watches.any() {
		o.watches.noteGroup(ev.Slot)
	}
	return noted
}
