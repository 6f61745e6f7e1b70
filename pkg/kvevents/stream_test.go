package kvevents

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// script drives a stream through the words of a text:
//
//	up, down           a connection comes, the last one goes
//	a5                 live message 5 of engine a (aMAX: the highest number)
//	ask:0              a replay from 0 was asked for: it begins
//	quiet              nothing was asked for
//	+a5, +end          an answer of the running replay, its end mark
//	6s                 time passes, then the clock ticks
//	refuse             the granted request cannot be sent
//	replay:off, :on    the replay endpoint goes, or is another one
//
// Payloads are the words themselves: "x" engines are undecodable, "f" engines
// belong to another rank, with "z" engines all blocks are gone.
type script struct {
	t       *testing.T
	s       *stream
	n       Counters
	now     time.Time
	asked   bool
	applied []string
	// replayedAt has how much was applied when a replay of everything began.
	replayedAt []int
	rewoundAt  []int // the same of replays that repeat what was applied
	lostAt     []int // the same of messages that are lost
}

func newScript(t *testing.T, replayable bool) *script {
	sc := &script{t: t, now: time.Unix(1e9, 0)}
	sc.s = &stream{
		output: sc, replays: sc, counters: &sc.n, replayable: replayable,
		limits: limits{held: 10, heldBytes: 1000, silence: 5 * time.Second},
	}
	return sc
}

func (sc *script) apply(m message) (cleared bool, err error) {
	if m.payload[0] == 'x' {
		return false, errors.New("undecodable")
	}
	sc.applied = append(sc.applied, string(m.payload))
	return m.payload[0] == 'z', nil
}
func (sc *script) clear()   { sc.applied = append(sc.applied, "clear") }
func (sc *script) restore() { sc.applied = append(sc.applied, "restore") }
func (sc *script) discard() { sc.applied = append(sc.applied, "discard") }

func (sc *script) lose() { sc.lostAt = append(sc.lostAt, len(sc.applied)) }

func (sc *script) rewind() { sc.rewoundAt = append(sc.rewoundAt, len(sc.applied)) }

func (sc *script) beginReplay()                { sc.replayedAt = append(sc.replayedAt, len(sc.applied)) }
func (sc *script) foreign(payload []byte) bool { return payload[0] == 'f' }
func (sc *script) askReplay()                  { sc.asked = true }
func (sc *script) closeReplay()                { sc.asked = false }

func (sc *script) run(text string) {
	sc.t.Helper()
	for i, word := range strings.Fields(text) {
		if err := sc.step(word); err != nil {
			sc.t.Fatalf("word %d, %s: %v; applied %v", i, word, err, sc.applied)
		}
	}
}

func (sc *script) step(word string) error {
	verb, arg, _ := strings.Cut(word, ":")
	switch verb {
	case "up":
		sc.s.connected(sc.now)
	case "down":
		sc.s.disconnected(sc.now)
	case "quiet":
		if sc.asked {
			return errors.New("a replay was asked for")
		}
	case "ask":
		from, ok := sc.s.granted(sc.now)
		if !sc.asked || !ok {
			return errors.New("no replay was asked for")
		}
		sc.asked = false
		if arg != strconv.FormatUint(from, 10) {
			return fmt.Errorf("the replay is from %d", from)
		}
	case "refuse":
		sc.s.notOpened(sc.now)
	case "replay":
		sc.s.setReplayable(arg == "on", sc.now)
	case "+end":
		sc.s.answer(message{}, true, sc.now)
	default:
		if d, err := time.ParseDuration(word); err == nil {
			sc.now = sc.now.Add(d)
			sc.s.tick(sc.now)
			return nil
		}
		name, replayed := strings.CutPrefix(word, "+")
		seq, err := strconv.ParseUint(name[1:], 10, 64)
		if name[1:] == "MAX" {
			seq, err = math.MaxUint64, nil
		}
		if err != nil {
			return err
		}
		m := message{seq: seq, payload: []byte(name)}
		if replayed {
			sc.s.answer(m, false, sc.now)
		} else {
			sc.s.live(m, sc.now)
		}
	}
	return nil
}

func TestStream(t *testing.T) {
	const (
		none   = false
		replay = true
	)
	tests := map[string]struct {
		replayable bool
		script     string
		applied    string
		state      StreamState
	}{
		// Live numbers without a replay endpoint.
		"in order":                         {none, "up a0 a1 a2 quiet", "a0 a1 a2", Live},
		"joined late":                      {none, "up a5 a6", "a5 a6", Live},
		"a gap is accepted":                {none, "up a0 a3 a4", "a0 a3 a4", Stale},
		"repeated numbers":                 {none, "up a5 b5 b5 a6", "a5 a6", Live},
		"one late number":                  {none, "up a4 a5 b3 a6", "a4 a5 a6", Live},
		"late numbers one by one":          {none, "up a4 a5 b3 a6 b4 a7 b5 a8", "a4 a5 a6 a7 a8", Live},
		"falling late numbers":             {none, "up a5 b5 b4 a9", "a5 a9", Stale},
		"the last number is not below":     {none, "up a5 b4 b5 a6", "a5 a6", Live},
		"a first message twice":            {none, "up a0 a0 a1", "a0 a1", Live},
		"undecodable messages count":       {none, "up a0 x1 a2", "a0 a2", Live},
		"restart from 0":                   {none, "up a7 a8 b0 b1", "a7 a8 clear b0 b1", Live},
		"restart seen at 3":                {none, "up a7 a8 b3 b4 b5", "a7 a8 clear b3 b4 b5", Live},
		"restart seen at 3, then a gap":    {none, "up a7 a8 b3 b5", "a7 a8 clear b3 b5", Stale},
		"restart heals":                    {none, "up a0 a9 b0", "a0 a9 clear b0", Live},
		"two restarts":                     {none, "up a3 a4 b0 b1 c0", "a3 a4 clear b0 b1 clear c0", Live},
		"old number, then a 0":             {none, "up a7 a8 b3 c0 c1", "a7 a8 clear c0 c1", Live},
		"the highest number":               {none, "up a0 aMAX", "a0 aMAX", Stale},
		"nothing above the highest number": {none, "up aMAX b0 b1", "aMAX clear b0 b1", Live},
		"not connected":                    {none, "up down a1", "a1", Connecting},

		// Replays at connect.
		"cold engine":                   {replay, "up ask:0 +end a0 a1", "a0 a1", Live},
		"warm, idle engine":             {replay, "up ask:0 +a0 +a1 +end", "a0 a1", Live},
		"warm engine, trimmed ring":     {replay, "up ask:0 +a7 +a8 +end a9", "a7 a8 a9", Live},
		"live before the answers":       {replay, "up a1 a2 ask:0 +a0 +a1 +end", "a0 a1 a2", Live},
		"live while answers come":       {replay, "up ask:0 +a0 a1 +a1 a2 +end", "a0 a1 a2", Live},
		"live after what overtook it":   {replay, "up ask:0 +a0 +a1 +a2 +end a0 a1 a2 a3 quiet", "a0 a1 a2 a3", Live},
		"silent":                        {replay, "up ask:0 a0 4s a1 1s a2", "a0 a1 a2", Live},
		"silent, joined late":           {replay, "up ask:0 a7 5s quiet a8", "a7 a8", Live},
		"silent after some":             {replay, "up ask:0 +a0 4s +a1 4s a2 1s", "a0 a1 a2", Live},
		"silent after some, then a gap": {replay, "up ask:0 +a0 5s 1s a3 ask:1 +a1 +a2 +a3 +end", "a0 a1 a2 a3", Live},
		"not opened":                    {replay, "up ask:0 a0 refuse a1", "a0 a1", Live},
		"ring comes later":              {replay, "up ask:0 +end a2 ask:0 +a0 +a1 +a2 +end a3", "a0 a1 a2 a3", Live},
		"ring stays empty":              {replay, "up ask:0 +end a2 ask:0 +end quiet a3", "a2 a3", Live},
		"no publisher":                  {replay, "quiet", "", Connecting},
		"undecodable in the ring":       {replay, "up ask:0 +a0 +x1 +a2 +end a3", "a0 a2 a3", Live},
		"other ranks in the ring":       {replay, "up ask:0 +f0 +f1 +f2 +end a0 a1 quiet", "a0 a1", Live},
		"repeats in the ring":           {replay, "up ask:0 +a0 +a1 +a1 +a0 +a2 +end", "a0 a1 a2", Live},
		"repeats are no sign of life":   {replay, "up ask:0 +a0 3s +a0 a1 3s", "a0 a1", Live},
		"too many live messages":        {replay, "up ask:0 a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10", "a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 a10", Live},
		"still running":                 {replay, "up ask:0 +a0 a1", "a0", Replaying},
		"not begun":                     {replay, "up a0", "", Replaying},

		// Gaps.
		"gap":                                   {replay, "up ask:0 +a0 +end a3 ask:1 +a1 +a2 +a3 +end a4", "a0 a1 a2 a3 a4", Live},
		"gap, ring ends before the live number": {replay, "up ask:0 +a0 +end a3 ask:1 +a1 +a2 +end a4", "a0 a1 a2 a3 a4", Live},
		"gap, ring starts late":                 {replay, "up ask:0 +a0 +end a4 ask:1 +a3 +a4 +end a5", "a0 a3 a4 a5", Stale},
		"gap, number left out":                  {replay, "up ask:0 +a0 +end a4 ask:1 +a1 +a3 +a4 +end a5", "a0 a1 a3 a4 a5", Stale},
		"gap, ends early":                       {replay, "up ask:0 +a0 +end a4 ask:1 +a1 +end quiet a5", "a0 a1 a4 a5", Stale},
		"gap, empty":                            {replay, "up ask:0 +a0 +end a4 ask:1 +end quiet a5", "a0 a4 a5", Stale},
		"gap, silent":                           {replay, "up ask:0 +a0 +end a4 ask:1 a5 5s quiet a6", "a0 a4 a5 a6", Stale},
		"gap after a gap":                       {replay, "up ask:0 +a0 +end a3 a9 ask:1 +a1 +a2 +a3 +end ask:4 +a4 +a5 +a6 +a7 +a8 +end", "a0 a1 a2 a3 a4 a5 a6 a7 a8 a9", Live},
		"gap, start number ignored":             {replay, "up ask:0 +a0 +a1 +end a3 ask:2 +a0 +a1 +a2 +a3 +end", "a0 a1 a2 a3", Live},
		"gap, endpoint back to life":            {replay, "up ask:0 +end a0 a3 ask:1 5s 1s a5 ask:4 5s a7 quiet 6s a9 ask:8 +a8 +a9 +end", "a0 a3 a5 a7 a8 a9", Stale},
		"a later ring heals":                    {replay, "up ask:0 5s 1s a0 a4 ask:1 5s down up ask:0 +a0 +a1 +a2 +a3 +a4 +end a5", "a0 a4 a0 a1 a2 a3 a4 a5", Live},
		"a later ring heals what it reaches":    {replay, "up ask:0 5s 1s a0 a4 ask:1 5s down up ask:0 +a2 +a3 +a4 +end a5", "a0 a4 a2 a3 a4 a5", Stale},
		"a ring that reaches back breaks off":   {replay, "up ask:0 5s a5 down up ask:0 +a0 +a1 5s 1s a6 ask:0 +a0 +a1 +a2 +a3 +a4 +a5 +a6 +end", "a5 a0 a1 clear a0 a1 a2 a3 a4 a5 a6", Live},

		// A replay of everything breaks off.
		"asked again, engine idle":           {replay, "up ask:0 +a0 +a1 5s 4s quiet 1s ask:0 +a0 +a1 +a2 +end a3", "a0 a1 a2 a3", Live},
		"asked again, silent at first":       {replay, "up ask:0 5s 5s ask:0 +a0 +a1 +end", "a0 a1", Live},
		"asked again, joined late":           {replay, "up ask:0 a2 5s 5s ask:0 +a0 +a1 +a2 +end", "a2 a0 a1 a2", Live},
		"asked again, numbers left out":      {replay, "up ask:0 +a0 +a2 +end 5s ask:0 +a0 +a1 +a2 +end a3", "a0 a2 a0 a1 a2 a3", Live},
		"asked again, end was early":         {replay, "up ask:0 +end a3 ask:0 +a0 +end 5s ask:0 +a0 +a1 +a2 +a3 +end", "a0 a3 a0 a1 a2 a3", Live},
		"asked again, not opened":            {replay, "up ask:0 refuse 5s ask:0 refuse 9s quiet 1s ask:0 +a0 +end", "a0", Live},
		"asked again, not for ever":          {replay, "up ask:0 5s 5s ask:0 5s 10s ask:0 5s 20s ask:0 5s 1h quiet down up ask:0 5s 5s ask:0 +a0 +end", "a0", Live},
		"asked again after a gap's silence":  {replay, "up ask:0 a0 5s 1s a3 ask:1 5s 4s quiet 1s ask:0 +a0 +a1 +a2 +a3 +end", "a0 a3 a0 a1 a2 a3", Live},
		"asked again for a new engine":       {replay, "up ask:0 +a0 +a1 +end a2 a3 a4 b2 b3 ask:0 5s 4s quiet 1s ask:0 +b0 +b1 +b2 +b3 +end", "a0 a1 a2 a3 a4 clear b2 b3 b0 b1 b2 b3", Live},
		"asked again to verify":              {replay, "up ask:0 +a0 +end down up ask:0 5s a1 5s ask:0 +a0 +a1 +end", "a0 a1", Live},
		"not again: nothing is missing":      {replay, "up ask:0 a0 5s a1 5s quiet 1h quiet", "a0 a1", Live},
		"not again: the gap's replay was it": {replay, "up ask:0 +a0 5s 1s a3 ask:1 +a1 +a2 +a3 +end 5s quiet", "a0 a1 a2 a3", Live},
		"not again: the ring is trimmed":     {replay, "up ask:0 +a3 +a5 +end 1h quiet", "a3 a5", Stale},
		"not again: no connection":           {replay, "up ask:0 +a0 down 1h quiet", "a0", Connecting},
		"not again: no endpoint":             {replay, "up ask:0 5s replay:off 1h quiet", "", Live},
		"asked again once, nothing was left": {replay, "up ask:0 +a0 5s 5s ask:0 +a0 +end 1h quiet", "a0", Live},

		// Reconnects.
		"same engine":                        {replay, "up ask:0 +a0 +a1 +end a2 down up ask:0 +a0 +a1 +a2 +end a3", "a0 a1 a2 a3", Live},
		"same engine, missed some":           {replay, "up ask:0 +a0 +end down up ask:0 +a0 +a1 +a2 +end a3", "a0 a1 a2 a3", Live},
		"same engine, trimmed":               {replay, "up ask:0 +a0 +a1 +end down up ask:0 +a1 +a2 +end a3", "a0 a1 a2 a3", Live},
		"same engine, trimmed too far":       {replay, "up ask:0 +a0 +a1 +end down up ask:0 +a5 +a6 +end a7", "a0 a1 a5 a6 a7", Stale},
		"same engine, no ring":               {replay, "up ask:0 +end a0 a1 down up ask:0 +end a2 ask:0 +end a3 down up ask:0 +end a4", "a0 a1 clear a2 a3 a4", Stale},
		"same engine, end of the ring lost":  {replay, "up ask:0 +a5 +a6 +a7 +end down up ask:0 +a5 +a6 +end ask:7 +a7 +a8 +end quiet a9", "a5 a6 a7 a8 a9", Live},
		"same engine, end lost, ring from 0": {replay, "up ask:0 +a0 +a1 +a2 +end down up ask:0 +a0 +a1 +end ask:2 +a2 +end quiet a3", "a0 a1 a2 a3", Live},
		"same engine, number asked ignored":  {replay, "up ask:0 +a5 +a6 +a7 +end down up ask:0 +a5 +a6 +end ask:7 +a5 +a6 +end quiet a8", "a5 a6 a7 a8", Live},
		"same engine, end lost, then silent": {replay, "up ask:0 +a0 +a1 +a2 +end down up ask:0 +a0 +a1 +end ask:2 5s 5s ask:0 +a0 +a1 +a2 +end quiet", "a0 a1 a2", Live},
		"same engine, then another rank":     {replay, "up ask:0 +a5 +a6 +a7 +end down up ask:0 +a5 +a6 +end ask:7 +f9 +end quiet", "a5 a6 a7", Live},
		"not asked yet, a second publisher":  {replay, "up ask:0 +a0 +a1 +a2 +end down up ask:0 +a0 +a1 +end up ask:0 +end", "a0 a1 a2 clear", Live},
		"old engine's rest arrives late":     {replay, "up ask:0 +a0 +end down a1 up ask:0 +a0 +a1 +a2 +end", "a0 a1 a2", Live},
		"new engine":                         {replay, "up ask:0 +a0 +a1 +a2 +end down up ask:0 +b0 ask:0 +b0 +end b1", "a0 a1 a2 clear b0 b1", Live},
		"new engine, still empty":            {replay, "up ask:0 +a0 +a1 +a2 +end down up ask:0 +end quiet b0 quiet b1", "a0 a1 a2 clear b0 b1", Live},
		"new engine, idle":                   {replay, "up ask:0 +a0 +a1 +end down up ask:0 +end quiet", "a0 a1 clear", Live},
		"new engine, first number lost":      {none, "up a0 a1 a2 down up b1", "a0 a1 a2 clear b1", Live},
		"new engine after one message":       {none, "up a0 down up b0 b1 b2", "a0 clear b0 b1 b2", Live},
		"the last message again":             {none, "up a0 a1 down up a1 a2", "a0 a1 a2", Live},
		"empty, but of another rank":         {replay, "up ask:0 +a0 +end down up ask:0 +f3 +end", "a0", Stale},
		"empty, for a message before":        {replay, "up ask:0 +a0 +end down up a1 ask:0 +end", "a0 a1", Stale},
		"new engine, passed the old":         {replay, "up ask:0 +a0 +a1 +end down up ask:0 +b0 ask:0 +b0 +b1 +b2 +end b3", "a0 a1 clear b0 b1 b2 b3", Live},
		"new engine, passed, trimmed":        {replay, "up ask:0 +a0 +a1 +a2 +end down up ask:0 +b2 ask:0 +b2 +b3 +end b4", "a0 a1 a2 clear b2 b3 b4", Live},
		"new engine, same content":           {replay, "up ask:0 +a0 +a1 +a2 +end down up ask:0 +a0 +a1 +end ask:2 +end ask:0 +a0 +a1 +end a2", "a0 a1 a2 clear a0 a1 a2", Live},
		"new engine, trimmed, idle":          {replay, "up ask:0 +a0 +a1 +a2 +a3 +end down up ask:0 +b1 +b2 +end ask:3 +end ask:0 +b1 +b2 +end quiet b3", "a0 a1 a2 a3 clear b1 b2 b3", Live},
		"new engine, trimmed, not idle":      {replay, "up ask:0 +a0 +a1 +a2 +a3 +end down up ask:0 +b1 +b2 +end b3 ask:3 +b3 ask:0 +b2 +b3 +end b4", "a0 a1 a2 a3 clear b2 b3 b4", Live},
		"new engine, trimmed, past the old":  {replay, "up ask:0 +a0 +a1 +a2 +end down up ask:0 +b1 b2 b3 b4 +end ask:2 +b4 +end ask:0 +b4 +end ask:0 +b4 +end b5", "a0 a1 a2 b4 clear b4 b5", Live},
		"new engine, trimmed, live is low":   {replay, "up ask:0 +a0 +a1 +a2 +a3 +end down up ask:0 +b1 b2 +end ask:3 +end ask:0 +b1 +b2 +end quiet b3", "a0 a1 a2 a3 clear b1 b2 b3", Live},
		"new engine, rest of the old":        {replay, "up ask:0 +a0 +a1 +end down up a2 b0 ask:0 +b0 ask:0 +b0 +end b1", "a0 a1 clear b0 b1", Live},
		"new engine, only the old's rest":    {replay, "up ask:0 +a0 +a1 +a5 +end down up a6 ask:0 +a0 +a1 +end ask:0 +a0 +a1 +end a2", "a0 a1 a5 a0 a1 clear a0 a1 a2", Live},
		"new engine, silent":                 {replay, "up ask:0 +a0 +a1 +end down up ask:0 b0 5s b1", "a0 a1 clear b0 b1", Live},
		"lost while replaying":               {replay, "up ask:0 +a0 a1 down", "a0 a1", Connecting},
		"new engine while replaying":         {replay, "up ask:0 +a0 +a1 +end a3 ask:2 down up ask:0 +b0 ask:0 +b0 +end b1", "a0 a1 a3 clear b0 b1", Live},
		"a second publisher":                 {replay, "up ask:0 +a0 up +end ask:0 +a0 +end a1", "a0 a1", Live},
		"a second publisher, gap waits":      {replay, "up ask:0 +a0 +end a3 up ask:0 +a0 +a1 +a2 +a3 +end a4", "a0 a1 a2 a3 a4", Live},
		"a second publisher, idle":           {replay, "up ask:0 +a0 +end up ask:0 +a0 +end a1", "a0 a1", Live},

		// The engine drops all blocks: nothing that was lost before matters.
		"a clear makes up for a gap":    {none, "up a0 a3 z4 a5", "a0 a3 z4 a5", Live},
		"a clear shows the gap":         {none, "up a0 z3", "a0 z3", Live},
		"a clear before a gap":          {none, "up a0 z1 a3", "a0 z1 a3", Stale},
		"a gap after a clear":           {none, "up a0 a3 z4 a6", "a0 a3 z4 a6", Stale},
		"a clear in the ring":           {replay, "up ask:0 +a0 +end a5 ask:1 +a3 +z4 +a5 +end", "a0 a3 z4 a5", Live},
		"a clear before the ring's gap": {replay, "up ask:0 +a0 +end a5 ask:1 +z3 +a5 +end a6", "a0 z3 a5 a6", Stale},
		"a clear verifies the engine":   {replay, "up ask:0 5s a0 a1 down up ask:0 5s a2 z3", "a0 a1 a2 z3", Live},

		// Falling live numbers, no reconnect seen.
		"0: a new engine":                      {replay, "up ask:0 +a0 +a1 +a2 +end a3 b0 ask:0 +b0 ask:0 +b0 +end b1", "a0 a1 a2 a3 clear b0 b1", Live},
		"0: a new engine with the same start":  {replay, "up ask:0 +a0 +a1 +a2 +end a3 a0 ask:0 +a0 +end ask:0 +a0 +end a1", "a0 a1 a2 a3 clear a0 a1", Live},
		"0: a duplicate":                       {replay, "up ask:0 +a0 +a1 +a2 +end a3 a0 ask:0 +a0 +a1 +a2 +a3 +end a4", "a0 a1 a2 a3 a4", Live},
		"0 after 0: a new engine":              {replay, "up ask:0 +end a0 b0 ask:0 +b0 ask:0 +b0 +end b1 b2", "a0 clear b0 b1 b2", Live},
		"0 after 0: the same":                  {replay, "up ask:0 +end a0 a0 quiet a1", "a0 a1", Live},
		"0: silent":                            {replay, "up ask:0 +a0 +a1 +a2 +end a3 b0 ask:0 5s b1", "a0 a1 a2 a3 clear b0 b1", Live},
		"0: not opened":                        {replay, "up ask:0 +a0 +a1 +a2 +end a3 b0 ask:0 refuse b1", "a0 a1 a2 a3 clear b0 b1", Live},
		"0: empty ring":                        {replay, "up ask:0 +a0 +a1 +a2 +end a3 b0 ask:0 +end b1 quiet", "a0 a1 a2 a3 clear b0 b1", Live},
		"0: another rank's ring":               {replay, "up ask:0 +end a0 a1 a2 b0 ask:0 +f0 +f1 +f9 +end b1 quiet", "a0 a1 a2 clear b0 b1", Live},
		"rising: a new engine":                 {replay, "up ask:0 +a0 +a1 +a2 +end a3 a4 a5 b1 b2 ask:0 +b0 ask:0 +b0 +b1 +b2 +end b3", "a0 a1 a2 a3 a4 a5 clear b0 b1 b2 b3", Live},
		"rising: a new engine with a gap":      {replay, "up ask:0 +a0 +a1 +a2 +end a3 a4 a5 b1 b3 ask:0 +b0 ask:0 +b0 +b1 +b2 +end b4", "a0 a1 a2 a3 a4 a5 clear b0 b1 b2 b3 b4", Live},
		"rising: trimmed ring ends below":      {replay, "up ask:0 +a7 +a8 +a9 +end a10 b5 b6 ask:0 +b4 +b5 +b6 +end ask:0 +b4 +b5 +b6 +end b7", "a7 a8 a9 a10 clear b4 b5 b6 b7", Live},
		"rising: duplicates":                   {replay, "up ask:0 +a0 +a1 +a2 +end a3 a1 a2 ask:0 +a0 +a1 +a2 +a3 +end a4", "a0 a1 a2 a3 a4", Live},
		"duplicates again and again":           {replay, "up ask:0 +a0 +end a1 a2 a3 a1 a2 ask:0 +a0 +a1 +a2 +a3 +end a1 a2 a3 a1 a2 quiet 9s a1 a2 quiet 2s a1 a2 ask:0", "a0 a1 a2 a3", Replaying},
		"rising: silent":                       {replay, "up ask:0 +a0 +a1 +a2 +end a3 a4 a5 b1 b2 ask:0 5s b3", "a0 a1 a2 a3 a4 a5 clear b1 b2 b3", Live},
		"after silence the live rule holds":    {replay, "up ask:0 a5 5s 1s a7 ask:6 5s b0 quiet b1", "a5 a7 clear b0 b1", Live},
		"restart behind a gap that is waiting": {replay, "up ask:0 +a0 +a1 +end a3 b0 b1 ask:2 +end ask:0 +b0 ask:0 +b0 +b1 +end", "a0 a1 a3 clear b0 b1", Live},

		// More replays wanted than may run.
		"waits for its turn": {replay, "up a1 4s a2 ask:0 +a0 +a1 +a2 +end", "a0 a1 a2", Live},
		"waits too long: live goes on, the ring comes later": {replay, "up a1 5s a2 ask:0 +a0 +a1 +a2 +end a3", "a1 a2 a0 a1 a2 a3", Live},
		"waits too long with a gap":                          {replay, "up ask:0 +a0 +end a3 5s a4 ask:1 +a1 +a2 +a3 +a4 +end a5", "a0 a3 a4 a1 a2 a3 a4 a5", Live},
		"waits too long with a suspicion":                    {replay, "up ask:0 +a0 +a1 +a2 +end a3 a4 a5 b1 b2 5s b3 ask:0 +b0 +b1 +b2 +b3 +end", "a0 a1 a2 a3 a4 a5 clear b1 b2 b3 b0 b1 b2 b3", Live},
		"restart while waiting too long":                     {replay, "up a1 5s a2 b0 ask:0 +b0 +end b1", "a1 a2 clear b0 b1", Live},
		"lost while waiting":                                 {replay, "up a1 5s a2 down quiet", "a1 a2", Connecting},

		// Changes of the registration.
		"an endpoint at last":       {none, "up a3 replay:on ask:0 +a1 +a2 +a3 +end a4", "a3 a1 a2 a3 a4", Live},
		"no endpoint any more":      {replay, "up ask:0 a0 replay:off quiet a1 a3", "a0 a1 a3", Stale},
		"another endpoint":          {replay, "up ask:0 5s a0 replay:on ask:0 +a0 +end a1", "a0 a1", Live},
		"another one while waiting": {replay, "up ask:0 +a0 +end a3 replay:on ask:0 +a0 +a1 +a2 +a3 +end", "a0 a3 a0 a1 a2 a3", Live},
		"not connected, endpoint":   {none, "replay:on quiet up ask:0 +a0 +end", "a0", Live},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			sc := newScript(t, tc.replayable)
			sc.run(tc.script)
			if got := strings.Join(sc.applied, " "); got != tc.applied {
				t.Errorf("%s\napplied %s\nwant    %s", tc.script, got, tc.applied)
			}
			if got := sc.s.state(); got != tc.state {
				t.Errorf("%s\nstate %v, want %v", tc.script, got, tc.state)
			}
		})
	}
}

// TestReplayOfEverything proves that beginReplay is called before the first message
// of a replay that is applied from message 0 on, and of no other, and rewind before
// messages are applied a second time.
func TestReplayOfEverything(t *testing.T) {
	tests := map[string]struct {
		script string
		at     []int // how much was applied before
		again  []int // the same, where messages come again
	}{
		"at connect":                     {"up ask:0 +a0 +a1 +end a2", []int{0}, nil},
		"of a ring that lost its start":  {"up ask:0 +a3 +a4 +end a5", nil, nil},
		"of an empty ring":               {"up ask:0 +end a1", nil, nil},
		"of a live 0":                    {"up ask:0 +end a0 a1", nil, nil},
		"again, of what is known":        {"up ask:0 +a0 +a1 +end down up ask:0 +a0 +a1 +end", []int{0}, nil},
		"behind where the stream joined": {"up ask:0 +end a5 ask:0 6s down up ask:0 +a0 +a1 +a2 +a3 +a4 +a5 +end", []int{1}, []int{1}},
		"of a new engine":                {"up ask:0 +a0 +a1 +end down up ask:0 +b0 ask:0 +b0 +b1 +b2 +end", []int{0, 3}, nil},
		"of a missing part":              {"up ask:0 +a0 +end a3 ask:1 +a1 +a2 +end", []int{0}, nil},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			sc := newScript(t, true)
			sc.run(tc.script)
			if !slices.Equal(sc.replayedAt, tc.at) {
				t.Errorf("beginReplay after %v messages, want %v; applied %v", sc.replayedAt, tc.at, sc.applied)
			}
			if !slices.Equal(sc.rewoundAt, tc.again) {
				t.Errorf("rewind after %v messages, want %v; applied %v", sc.rewoundAt, tc.again, sc.applied)
			}
		})
	}
}

// TestStreamString proves that a stream's description names its states and what
// is known of its numbers.
func TestStreamString(t *testing.T) {
	tests := []struct{ script, want string }{
		{"", "connecting following"},
		{"up", "replaying awaiting from=0 held=0"},
		{"up a1 5s", "replaying overdue applied=1..1 lastLive=1 from=0 held=0"},
		{"up ask:0 +a0 a1 a2", "replaying replaying applied=0..0 from=0 held=2"},
		{"up ask:0 +a0 +end a1", "live following applied=0..1 lastLive=1"},
		{"up ask:0 +a0 +end a3 ask:1 +a2 +end", "stale following applied=2..3 firstLost=1 lastLive=3"},
		{"up ask:0 +a0 +end a5 ask:1 5s b3", "stale following applied=5..5 firstLost=1 lastLive=5 suspect=3"},
		{"up ask:0 5s a0", "live following applied=0..0 lastLive=0 retries=0"},
		{"up ask:0 +a0 +end down", "connecting following applied=0..0 unverifiedUpTo=0 lastLive=0"},
	}
	for _, tc := range tests {
		sc := newScript(t, true)
		sc.run(tc.script)
		if got := sc.s.String(); got != tc.want {
			t.Errorf("%s: %s, want %s", tc.script, got, tc.want)
		}
	}
}
