package tracing

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// environment reads the variables that OpenTelemetry defines for every program
// (https://opentelemetry.io/docs/specs/otel/configuration/sdk-environment-variables/). They are often those
// of a whole namespace and meant for other SDKs. So nothing in them ends the start: of a value that is not
// understood a warning names the variable and the value, and the variable counts as not set. Values are
// trimmed, and of those with a choice the case does not count.
type environment struct {
	getenv func(string) string
	log    zerolog.Logger
}

// get returns the value of a variable, "" if it is not set.
func (e *environment) get(name string) string { return strings.TrimSpace(e.getenv(name)) }

// ignored warns of a variable whose value is not understood. why continues a sentence, instead says what
// holds.
func (e *environment) ignored(name, value, why, instead string) {
	const most = 100
	if len(value) > most {
		value = value[:most] + "…"
	}
	e.log.Warn().Str("variable", name).Msgf("%s is %q, %s: %s", name, value, why, instead)
}

// choice returns the value, in small letters, of the first of some variables that has one of the given
// values, "" if none has.
func (e *environment) choice(values []string, instead string, names ...string) string {
	for _, name := range names {
		text := e.get(name)
		if value := strings.ToLower(text); text == "" || slices.Contains(values, value) {
			if value != "" {
				return value
			}
			continue
		}
		e.ignored(name, text, "which is not "+oneOf(values), instead)
	}
	return ""
}

// oneOf returns values as a sentence has them.
func oneOf(values []string) string {
	last := len(values) - 1
	if last == 0 {
		return values[0]
	}
	return strings.Join(values[:last], ", ") + " or " + values[last]
}

// number returns the value of the first of some variables that has a whole number of the given range.
func (e *environment) number(least, most, otherwise int, names ...string) int {
	for _, name := range names {
		text := e.get(name)
		if text == "" {
			continue
		}
		if n, err := strconv.Atoi(text); err == nil && n >= least && n <= most {
			return n
		}
		e.ignored(name, text, fmt.Sprintf("which is not a number from %d to %d", least, most), fmt.Sprintf("%d holds", otherwise))
	}
	return otherwise
}

// isTrue reports whether a variable is true.
func (e *environment) isTrue(name string) bool {
	text := e.get(name)
	if text != "" && !strings.EqualFold(text, "true") && !strings.EqualFold(text, "false") {
		e.ignored(name, text, "which is neither true nor false", "false holds")
	}
	return strings.EqualFold(text, "true")
}

// off reports whether the variables turn traces off.
func (e *environment) off() bool {
	return e.isTrue(disabled) || e.choice([]string{"otlp", "none"}, "spans go to the collector by OTLP", exporter) == "none"
}

// samplerNames are the names of all samplers; parentbased_ ones follow a caller's decision.
var samplerNames = []string{
	"always_on", "always_off", "traceidratio", "parentbased_always_on", "parentbased_always_off", "parentbased_traceidratio",
}

// sampler returns the sampler of the variables.
func (e *environment) sampler() (s sampler) {
	const otherwise = "parentbased_always_on"
	name := cmp.Or(e.choice(samplerNames, otherwise+" holds", samplerName), otherwise)
	name, s.parentBased = strings.CutPrefix(name, "parentbased_")
	switch name {
	case "always_on":
		s.bound = everything
	case "traceidratio":
		ratio := 1.0
		if text := e.get(samplerArg); text != "" {
			if r, err := strconv.ParseFloat(text, 64); err == nil && r >= 0 && r <= 1 {
				ratio = r
			} else {
				e.ignored(samplerArg, text, "which is not a number from 0 to 1", "1 holds")
			}
		}
		s.bound = uint64(ratio * everything)
	}
	return s
}

// propagates reports whether callers' spans are heeded, and ours passed on: the list of propagators has
// W3C's Trace Context, as the default has.
func (e *environment) propagates() bool {
	understood, has := false, false
	for text := range strings.SplitSeq(e.get(propagators), ",") {
		switch name := strings.ToLower(strings.TrimSpace(text)); name {
		case "":
		case "tracecontext":
			understood, has = true, true
		case "baggage", "none":
			understood = true
		default:
			e.ignored(propagators, name, "which is not tracecontext, baggage or none", "it is left out")
		}
	}
	return has || !understood
}

// The protocols of exporters.
const (
	protocolGRPC = "grpc"
	protocolHTTP = "http/protobuf"
)

// protocol returns the protocol that the variables name, "" for that of the endpoint's port.
func (e *environment) protocol() string {
	return e.choice([]string{protocolGRPC, protocolHTTP}, "the port of the endpoint decides", tracesProtocol, allProtocol)
}

// target is where spans go.
type target struct {
	url *url.URL // with http or https and a host; nil: address counts
	// address is what gRPC's name resolution understands.
	address  string
	protocol string
}

// insecure reports whether the collector is spoken with in plain text.
func (t *target) insecure(e *environment) bool {
	if t.url != nil {
		return t.url.Scheme == "http"
	}
	if strings.HasPrefix(t.address, "unix") {
		return true
	}
	for _, name := range [...]string{"OTEL_EXPORTER_OTLP_TRACES_INSECURE", "OTEL_EXPORTER_OTLP_INSECURE"} {
		if e.get(name) != "" {
			return e.isTrue(name)
		}
	}
	return false
}

// String is the target as the log has it.
func (t *target) String() string {
	if t.url != nil {
		return t.url.Redacted()
	}
	return t.address
}

// target returns where the variables send spans, nil if none of them does.
func (e *environment) target() *target {
	protocol := e.protocol()
	for _, name := range [...]string{tracesEndpoint, allEndpoint} {
		text := e.get(name)
		if text == "" {
			continue
		}
		t, why := parseTarget(text, protocol)
		if why != "" {
			instead := "spans do not go there"
			if t != nil {
				instead = "it is spoken with by TLS, unless OTEL_EXPORTER_OTLP_INSECURE is true"
			}
			e.ignored(name, withoutUser(text), why, instead)
		}
		switch {
		case t == nil:
			continue
		case t.url != nil && name == allEndpoint:
			t.url = t.url.JoinPath(tracesPath)
		case t.url != nil && t.url.Path == "":
			t.url.Path = "/" // the URL of traces counts as it is
		}
		return t
	}
	return nil
}

// tracesPath is where a collector takes traces below its base URL.
const tracesPath = "v1/traces"

// parseTarget reads an endpoint. why says what is wrong with it, also where it can be used.
func parseTarget(text, protocol string) (t *target, why string) {
	scheme, rest, full := strings.Cut(text, "://")
	scheme = strings.ToLower(scheme)
	if full && (scheme == "http" || scheme == "https") {
		u, err := url.Parse(text)
		if err != nil || u.Hostname() == "" {
			return nil, "which is not a URL with a host"
		}
		u.Scheme = scheme
		return &target{url: u, protocol: protocolOf(protocol, u.Port())}, ""
	}
	byGRPC := protocol == protocolGRPC
	if byGRPC && (full && slices.Contains([]string{"unix", "unix-abstract", "dns", "passthrough"}, scheme) || strings.HasPrefix(text, "unix:")) {
		return &target{address: text, protocol: protocol}, "" // a name of gRPC's own
	}
	if full {
		return nil, fmt.Sprintf("which has the scheme %q: write http://%s, or https:// for TLS", scheme, withoutUser(rest))
	}
	why = fmt.Sprintf("which has no scheme: write http://%s, or https:// for TLS", withoutUser(text))
	if host, port, err := net.SplitHostPort(text); err == nil && host != "" && protocolOf(protocol, port) == protocolGRPC {
		return &target{address: text, protocol: protocolGRPC}, why
	}
	return nil, why
}

// withoutUser returns an endpoint without the credentials that it may have.
func withoutUser(text string) string { return text[strings.LastIndexByte(text, '@')+1:] }

// protocolOf returns the protocol that is named, else that of a port.
func protocolOf(named, port string) string {
	if named == "" && port == "4317" {
		return protocolGRPC
	}
	return cmp.Or(named, protocolHTTP)
}

// timeout returns how long a batch may take to be sent; 0 is without an end of its own.
func (e *environment) timeout() time.Duration {
	const most = math.MaxInt64 / int(time.Millisecond)
	return time.Duration(e.number(0, most, 10_000, "OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT")) * time.Millisecond
}

// compresses reports whether batches are compressed.
func (e *environment) compresses() bool {
	return e.choice([]string{"gzip", "none"}, "nothing is compressed", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "OTEL_EXPORTER_OTLP_COMPRESSION") == "gzip"
}

// headers returns what is sent along with spans. Its values are secrets, so warnings do not have them.
func (e *environment) headers(protocol string) map[string]string {
	name := "OTEL_EXPORTER_OTLP_TRACES_HEADERS"
	if e.get(name) == "" {
		name = "OTEL_EXPORTER_OTLP_HEADERS"
	}
	headers := make(map[string]string)
	for pair := range strings.SplitSeq(e.get(name), ",") {
		key, value, given := strings.Cut(pair, "=")
		key = strings.TrimSpace(key)
		text, err := url.PathUnescape(strings.TrimSpace(value))
		switch {
		case strings.TrimSpace(pair) == "":
		case !given:
			e.log.Warn().Str("variable", name).Msgf("%s has a part without \"=\": it is left out", name)
		case err != nil || !validHeader(key, text, protocol):
			e.log.Warn().Str("variable", name).Msgf("%s: %s cannot send the header %q with its value: it is left out", name, protocol, key)
		default:
			headers[key] = text
		}
	}
	return headers
}

// validHeader reports whether a protocol can send a header. gRPC refuses more than HTTP.
func validHeader(key, value, protocol string) bool {
	const more = "-_."
	inKey := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune(more, r) ||
			protocol != protocolGRPC && strings.ContainsRune("!#$%&'*+^`|~", r)
	}
	inValue := func(r rune) bool { return r >= ' ' && r < 0x7f || r > 0x7f && protocol != protocolGRPC }
	return key != "" && !strings.ContainsFunc(key, func(r rune) bool { return !inKey(r) }) &&
		!strings.ContainsFunc(value, func(r rune) bool { return !inValue(r) })
}

// tls returns how a collector with TLS is spoken with.
func (e *environment) tls() *tls.Config {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	for _, name := range [...]string{"OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"} {
		path := e.get(name)
		if path == "" {
			continue
		}
		text, err := os.ReadFile(path)
		pool := x509.NewCertPool()
		if err == nil && pool.AppendCertsFromPEM(text) {
			config.RootCAs = pool
			break
		}
		e.ignored(name, path, "which is not a file with certificates", "the system's authorities hold")
	}
	for _, of := range [...]string{"OTEL_EXPORTER_OTLP_TRACES_CLIENT_", "OTEL_EXPORTER_OTLP_CLIENT_"} {
		certificate, key := e.get(of+"CERTIFICATE"), e.get(of+"KEY")
		if certificate == "" && key == "" {
			continue
		}
		pair, err := tls.LoadX509KeyPair(certificate, key)
		if err == nil {
			config.Certificates = []tls.Certificate{pair}
			break
		}
		e.ignored(of+"CERTIFICATE", certificate, fmt.Sprintf("and %sKEY is %q, which are not the files of a certificate and its key", of, key), "none is shown to the collector")
	}
	return config
}

// attributes returns what the variables say of this process.
func (e *environment) attributes() (all []attribute.KeyValue) {
	const resource, service = "OTEL_RESOURCE_ATTRIBUTES", "OTEL_SERVICE_NAME"
	for pair := range strings.SplitSeq(e.get(resource), ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		key, value, given := strings.Cut(pair, "=")
		text, err := url.PathUnescape(strings.TrimSpace(value))
		switch key = strings.TrimSpace(key); {
		case !given || key == "":
			e.ignored(resource, pair, "which is not name=value", "it is left out")
			continue
		case err != nil:
			text = value
			e.ignored(resource, pair, "whose value has a wrong escape", "it is taken as it is")
		}
		all = append(all, attribute.String(key, text))
	}
	if name := e.get(service); name != "" {
		all = append(all, attribute.String("service.name", name))
	}
	return all
}

// maxQueue bounds what a variable may make the queue, in spans.
const maxQueue = 1 << 20

// queue returns the options of the queue of spans.
func (e *environment) queue() []sdktrace.BatchSpanProcessorOption {
	const day = 24 * 60 * 60 * 1000
	size := e.number(1, maxQueue, sdktrace.DefaultMaxQueueSize, "OTEL_BSP_MAX_QUEUE_SIZE")
	milliseconds := func(least, otherwise int, name string) time.Duration {
		return time.Duration(e.number(least, day, otherwise, name)) * time.Millisecond
	}
	return []sdktrace.BatchSpanProcessorOption{
		sdktrace.WithMaxQueueSize(size),
		sdktrace.WithMaxExportBatchSize(e.number(1, size, min(size, sdktrace.DefaultMaxExportBatchSize), "OTEL_BSP_MAX_EXPORT_BATCH_SIZE")),
		sdktrace.WithBatchTimeout(milliseconds(1, sdktrace.DefaultScheduleDelay, "OTEL_BSP_SCHEDULE_DELAY")),
		sdktrace.WithExportTimeout(milliseconds(0, sdktrace.DefaultExportTimeout, "OTEL_BSP_EXPORT_TIMEOUT")),
	}
}

// maxText bounds a text of a span in bytes, where the environment has no bound: callers' texts may have
// many kilobytes, and collectors refuse batches of some megabytes.
const maxText = 1024

// limits returns the limits of a span.
func (e *environment) limits() sdktrace.SpanLimits {
	count := func(otherwise int, names ...string) int { return e.number(0, math.MaxInt32, otherwise, names...) }
	return sdktrace.SpanLimits{
		AttributeValueLengthLimit:   count(maxText, "OTEL_SPAN_ATTRIBUTE_VALUE_LENGTH_LIMIT", "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT"),
		AttributeValueDepthLimit:    sdktrace.DefaultAttributeValueDepthLimit,
		AttributeCountLimit:         count(sdktrace.DefaultAttributeCountLimit, "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT", "OTEL_ATTRIBUTE_COUNT_LIMIT"),
		EventCountLimit:             count(sdktrace.DefaultEventCountLimit, "OTEL_SPAN_EVENT_COUNT_LIMIT"),
		LinkCountLimit:              count(sdktrace.DefaultLinkCountLimit, "OTEL_SPAN_LINK_COUNT_LIMIT"),
		AttributePerEventCountLimit: count(sdktrace.DefaultAttributePerEventCountLimit, "OTEL_EVENT_ATTRIBUTE_COUNT_LIMIT"),
		AttributePerLinkCountLimit:  count(sdktrace.DefaultAttributePerLinkCountLimit, "OTEL_LINK_ATTRIBUTE_COUNT_LIMIT"),
	}
}
