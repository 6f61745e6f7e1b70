package httpapi

import (
	"strconv"

	"github.com/select-service/select-service/internal/conductor"
	"github.com/select-service/select-service/internal/conductorapi"
)

// rankMember is the member of an instance's hits that is no medium.
const rankMember = "DP"

// appendHits appends the answer to a query: hits in tokens by instance.
func appendHits(out []byte, tenant string, a *conductor.Answer) []byte {
	out = appendString(append(out, '{'), tenant)
	out = append(out, ':', '{')
	for i := range a.Instances {
		if i > 0 {
			out = append(out, ',')
		}
		out = appendInstance(out, a.Media, &a.Instances[i])
	}
	return append(out, '}', '}')
}

// appendInstance keeps the order of the API's description: the ranks stand
// behind the first medium.
func appendInstance(out []byte, media []string, m *conductor.InstanceMatch) []byte {
	out = appendString(out, m.Instance)
	out = append(out, `:{"longest_matched":`...)
	out = strconv.AppendUint(out, m.Longest, 10)
	for i, medium := range media {
		if medium == rankMember { // a publisher's own medium may be called so
			continue
		}
		out = appendString(append(out, ','), medium)
		out = append(out, ':')
		out = strconv.AppendUint(out, m.Media[i], 10)
		if i == 0 {
			out = appendRanks(out, m.Ranks)
		}
	}
	return append(out, '}')
}

func appendRanks(out []byte, ranks []conductor.RankMatch) []byte {
	out = append(appendKey(out, rankMember), '{')
	for i, r := range ranks {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, '"')
		out = strconv.AppendUint(out, uint64(r.Rank), 10)
		out = append(out, '"', ':')
		out = strconv.AppendUint(out, r.Tokens, 10)
	}
	return append(out, '}')
}

// appendConductorService appends a row of /services: the registration under its
// own names, the stream, what is indexed, and how its hashes are known.
func appendConductorService(out []byte, s conductorapi.Service) []byte {
	out = append(out, '{')
	out = appendStringField(out, "type", s.Type.String())
	out = appendStringField(out, "modelname", s.Model)
	out = appendStringField(out, "lora_name", s.LoRA)
	out = appendStringField(out, "tenant_id", s.Tenant)
	out = appendStringField(out, "instance_id", s.Instance)
	out = appendUintField(out, "block_size", s.BlockSize)
	out = appendUintField(out, "dp_rank", s.Rank)
	out = appendStringField(out, "additionalsalt", s.Salt)
	out = appendUintField(out, "hash_seed", s.HashSeed)
	out = appendStringField(out, "endpoint", s.Endpoint)
	if s.Replay != "" {
		out = appendStringField(out, "replay_endpoint", s.Replay)
	}
	out = appendStringField(out, "state", s.State.String())
	out = appendUintIf(out, "last_sequence", s.Last, s.HasLast)
	out = appendUintField(out, "messages_lost", s.Lost)
	out = appendUintField(out, "stream_restarts", s.Restarts)

	st := &s.Status
	out = appendUintField(out, "undecodable_messages", st.Undecodable)
	out = append(appendKey(out, "unused_events"), '{')
	for _, e := range st.Unused {
		out = appendUintField(out, e.Reason.String(), e.Events)
	}
	out = append(out, '}')
	out = appendUintIf(out, "last_event_id", st.LastEventID, st.HasEventID)
	out = strconv.AppendBool(appendKey(out, "stale"), st.Stale)
	out = appendUintField(out, "event_streams", uint64(st.Streams))
	out = appendUintField(out, "event_gaps", st.EventGaps)
	out = appendUintField(out, "events_missed", st.EventsMissed)
	out = appendUintField(out, "late_events", st.LateEvents)
	out = appendUintField(out, "restarts", st.Restarts)
	out = appendUintField(out, "base_mismatches", st.BaseMismatches)
	out = append(appendKey(out, "blocks"), '{')
	for i, m := range st.Blocks {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(appendString(out, m.Medium), ':')
		out = strconv.AppendUint(out, uint64(m.Blocks), 10)
	}
	out = append(out, '}')
	out = appendStringField(out, "hashes", st.Hashes.String())
	out = appendUintField(out, "token_blocks", st.TokenBlocks)
	out = appendUintField(out, "confirmed_blocks", st.Confirmed)
	out = appendUintField(out, "resolved_blocks", st.Resolved)
	out = appendUintField(out, "unverified_blocks", st.Unverified)
	return append(out, '}')
}

// appendUintIf writes null for a number that is not there.
func appendUintIf(out []byte, name string, v uint64, ok bool) []byte {
	if !ok {
		return appendNull(out, name)
	}
	return appendUintField(out, name, v)
}
