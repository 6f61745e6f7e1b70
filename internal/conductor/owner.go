package conductor

import (
	"github.com/select-service/select-service/internal/selection/diagnose"
	"github.com/select-service/select-service/pkg/indexer"
	"github.com/select-service/select-service/pkg/kvevents"
)

// Bounds of one publisher.
const (
	maxOwners  = 1024
	maxStreams = 16384
	maxMembers = maxNamespaces
)

type ownerKey struct {
	space   *space
	backend string
	rank    uint32
}

// owner is a holder of blocks: a rank of a publisher's engine (backend ""), or of a cache
// backend. It is written with both Publisher.mu and Registry.mu held, and read with either.
type owner struct {
	publisher *Publisher
	space     *space
	backend   string
	rank      uint32

	slots       []uint32
	mediumSlots []diagnose.MediumSlot // one per medium
	members     int                   // number of namespaces that it has stored in
}

// member is an owner in one namespace.
type member struct {
	key       memberKey
	ns        *namespace
	owner     *owner
	sequences []eventSequence // event-id streams, by the owner's mediumSlots; may be shorter
}

type memberKey struct {
	nsKey
	backend string
	rank    uint32
}

// mediumOf returns the name of an event's medium in answers, and whether the medium has a tier
// of its own.
func mediumOf(ev *kvevents.Event) (name string, natural bool) {
	if ev.TierKnown {
		return diagnose.Media[ev.Tier], true
	}
	return ev.Medium, false
}

// mediumSlotIndex returns the index of a medium's slot, -1 if there is none.
func (o *owner) mediumSlotIndex(medium string) int {
	for i := range o.mediumSlots {
		if o.mediumSlots[i].Medium == medium {
			return i
		}
	}
	return -1
}

// mediumAt returns the medium that an owner keeps in a tier of one of its slots, "" for none.
func (o *owner) mediumAt(slot uint32, t indexer.Tier) string {
	for i := range o.mediumSlots {
		if s := &o.mediumSlots[i]; s.Slot == slot && s.Tier == t {
			return s.Medium
		}
	}
	return ""
}

// tierOrder is the order in which media without a tier of their own are assigned tiers.
var tierOrder = [indexer.NumTiers]indexer.Tier{indexer.Device, indexer.External, indexer.Disk, indexer.Host}

// addMediumSlot assigns a slot and tier to a new medium: its own tier in the first slot if that
// is free, else the first free tier. number is the medium's number in the space.
func (o *owner) addMediumSlot(name string, natural bool, tier indexer.Tier, number uint8) int {
	s := diagnose.MediumSlot{Medium: name}
	s.Slot, s.Tier = o.freeTier(natural, tier)
	o.space.slots[s.Slot].media[s.Tier] = number
	o.mediumSlots = append(o.mediumSlots, s)
	return len(o.mediumSlots) - 1
}

func (o *owner) freeTier(natural bool, tier indexer.Tier) (uint32, indexer.Tier) {
	if !natural {
		tier = tierOrder[0]
	}
	if len(o.slots) > 0 {
		if natural && o.mediumAt(o.slots[0], tier) == "" {
			return o.slots[0], tier
		}
		for _, slot := range o.slots {
			for _, t := range tierOrder {
				if o.mediumAt(slot, t) == "" {
					return slot, t
				}
			}
		}
	}
	slot := o.space.takeSlot(o)
	o.slots = append(o.slots, slot)
	return slot, tier
}

// isEngine reports whether the owner is the publisher's engine itself.
func (o *owner) isEngine() bool {
	return o.backend == "" && o.space == o.publisher.namespace.space
}

// seedOf returns the seed of the namespace in which the owner has a block with that hash, in
// any medium.
func (o *owner) seedOf(name uint64) (seed uint64, ok bool) {
	for _, slot := range o.slots {
		if seed, ok = o.space.index.ParentSeed(slot, name); ok {
			return seed, true
		}
	}
	return 0, false
}

// isEmpty reports whether the index has no blocks of the owner, not even orphans.
func (o *owner) isEmpty() bool {
	for _, slot := range o.slots {
		if !o.space.index.Empty(slot) {
			return false
		}
	}
	return true
}
