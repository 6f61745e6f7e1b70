package describe

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/select-service/select-service/internal/engines"
	"github.com/select-service/select-service/pkg/catalog"
)

// Describe asks the engine at a URL. engine is its kind, or "" to find out: then nothing is
// assumed that an engine does not tell. Without an error the engine has answered, though not
// perhaps to every question: see the description's Unknown and Unanswered. An error is an *Error,
// or says what is wrong with the URL.
func (c *Client) Describe(ctx context.Context, text, engine string) (*catalog.Description, error) {
	base, err := catalog.NormalURL(text)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	q := &question{Client: c, ctx: ctx, base: base, host: u.Hostname(), engine: engines.Named(engine)}
	q.reported = &catalog.Description{Engine: engine, From: make(map[string]string), Unknown: make(map[string]string)}
	if err := q.run(); err != nil {
		return nil, err
	}
	return q.reported, nil
}

// run asks the engine by its row of the table. Every engine has a list of models, so that is asked for
// first; it may tell which engine it is.
func (q *question) run() error {
	owner, noModels := q.models()
	if isSilent(noModels) {
		return noModels
	}
	if e := engines.OwnedBy(owner); e != nil && q.reported.Engine == "" {
		q.engine, q.reported.Engine = e, e.Name
		return q.other(noModels, false)
	}
	if q.engine.InfoPaths == nil {
		return q.other(noModels, true)
	}
	return q.sglangOrOther(noModels)
}

// sglangOrOther finds out whether the engine is SGLang, which alone has its server information, and
// asks it accordingly.
func (q *question) sglangOrOther(noModels error) error {
	named := q.reported.Engine != ""
	info, path, err := q.info()
	switch {
	case err == nil && info.isSGLang():
		q.reported.Engine = catalog.EngineSGLang
		q.sglang(info, path)
		return nil
	case err == nil && named:
		return notUnderstood(q.base, path, errors.New("it is not the server information of SGLang"))
	case err != nil && (named || isAway(err)):
		return err // of an SGLang that may answer later
	}
	if failed := q.other(noModels, false); failed != nil {
		return failed
	}
	if status := statusOf(err); err != nil && q.reported.BlockSize == 0 && status/100 != 4 {
		q.unknown(err, catalog.FieldBlockSize, catalog.FieldSize, catalog.FieldTotalKVBlocks) // it says more than that there are no metrics
	}
	return nil
}

// question is one Describe.
type question struct {
	*Client
	ctx  context.Context //nolint:containedctx // it lives as long as the call that has made it
	base string
	host string // of the URL
	// engine is the row of the engine's kind, as far as that is known.
	engine   *engines.Engine
	reported *catalog.Description

	resolved []netip.Addr // of host; nil: not looked up
}

// set notes where a value comes from.
func (q *question) set(field, from string) { q.reported.From[field] = from }

// unknown notes why values are not known.
func (q *question) unknown(err error, fields ...string) {
	text := err.Error()
	if len(text) > longError {
		text = catalog.Clip(text)
	}
	for _, field := range fields {
		q.reported.Unknown[field] = text
	}
	if isAway(err) {
		q.reported.Unanswered = true
	}
}

// models asks for the model and its adapters. owner is who owns the model by the list.
func (q *question) models() (owner string, err error) {
	m, err := q.Models(q.ctx, q.base)
	if err != nil {
		q.unknown(err, catalog.FieldModel, catalog.FieldAdapters)
		return "", err
	}
	q.reported.Model, q.reported.Adapters, q.reported.Aliases, q.reported.Further = m.Model, m.Adapters, m.Aliases, m.Further
	q.set(catalog.FieldModel, modelsPath)
	q.set(catalog.FieldAdapters, modelsPath)
	if q.reported.MaxModelLen = m.Length; m.Length > 0 {
		q.set(catalog.FieldMaxModelLen, modelsPath)
	}
	return m.Owner, nil
}

// ranks sets the data-parallel ranks.
func (q *question) ranks(first, n uint32, from string) {
	q.reported.StartRank, q.reported.Size = first, n
	q.set(catalog.FieldSize, from)
	if first > 0 {
		q.set(catalog.FieldStartRank, from)
	}
}

// endpoints returns the sockets of n ranks from first on: rank r has the port base + r. Their
// host is that of the URL, whether the engine names it or none.
func (q *question) endpoints(host string, base, first, n uint32) (map[uint32]string, error) {
	if err := q.checkHost(host); err != nil {
		return nil, err
	}
	if last := uint64(base) + uint64(first) + uint64(n) - 1; base == 0 || last > 65535 {
		return nil, fmt.Errorf("the ports from %d on for the ranks %d to %d are not in [1, 65535]", base, first, uint64(first)+uint64(n)-1)
	}
	byRank := make(map[uint32]string, n)
	for dp := first; dp-first < n; dp++ {
		byRank[dp] = q.at(base + dp)
	}
	return byRank, nil
}

func (q *question) at(port uint32) string {
	return "tcp://" + net.JoinHostPort(q.host, strconv.FormatUint(uint64(port), 10))
}

// checkHost refuses the sockets of another host than that of the URL. A wildcard stands for it, and an
// address to which its name resolves is its own.
func (q *question) checkHost(named string) error {
	inside := strings.TrimSuffix(strings.TrimPrefix(named, "["), "]")
	if inside == "*" || strings.EqualFold(inside, q.host) {
		return nil
	}
	addr, err := netip.ParseAddr(inside)
	if err == nil && addr.IsUnspecified() {
		return nil
	}
	if err == nil && slices.Contains(q.addresses(), addr.Unmap().WithZone("")) {
		return nil
	}
	return fmt.Errorf("the engine names sockets on %q, which is not the host of its URL", catalog.Clip(named))
}

// addresses returns those of the URL's host.
func (q *question) addresses() []netip.Addr {
	if q.resolved == nil {
		if own, err := netip.ParseAddr(q.host); err == nil {
			q.resolved = []netip.Addr{own.Unmap().WithZone("")}
		} else if q.resolved, err = q.options.Resolve(q.ctx, q.host); err != nil {
			q.resolved = []netip.Addr{} // it is not asked twice
		}
	}
	return q.resolved
}

// isAway reports whether an error says that the engine may answer later.
func isAway(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && e.Away
}

// isSilent reports whether an error says that nothing answers at the URL.
func isSilent(err error) bool { return isAway(err) && statusOf(err) == 0 }

// statusOf returns the status of the answer that an error is about, 0 if there is none.
func statusOf(err error) int {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Status
	}
	return 0
}
