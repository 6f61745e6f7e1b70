package httpapi

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/select-service/select-service/internal/codec/bodyscan"
)

// contentTypes are the Content-Type values of answers. All answers share them; values of a
// header are never changed.
var contentTypes = [...][]string{
	bodyscan.JSON:    {"application/json"},
	bodyscan.Msgpack: {"application/msgpack"},
}

// bodyFormat returns the format of a request's body: JSON, also for types that end in +json, or
// msgpack under its three names, with any parameters. known is false for other types.
func bodyFormat(h http.Header) (f bodyscan.Format, known bool) {
	switch t := headerOf(h, "Content-Type"); t {
	case "application/json":
		return bodyscan.JSON, true
	case "":
		return bodyscan.JSON, false
	default:
		t, _, _ = strings.Cut(t, ";")
		return formatOf(t)
	}
}

// formatOf is bodyFormat for a media type without parameters.
func formatOf(t string) (f bodyscan.Format, known bool) {
	switch t = strings.ToLower(strings.TrimSpace(t)); t {
	case "application/json":
		return bodyscan.JSON, true
	case "application/msgpack", "application/x-msgpack", "application/vnd.msgpack":
		return bodyscan.Msgpack, true
	}
	kind, sub, ok := strings.Cut(t, "/")
	if !ok || kind == "" || strings.ContainsAny(t, " \t,") {
		return bodyscan.JSON, false
	}
	name, suffixed := strings.CutSuffix(sub, "+json")
	return bodyscan.JSON, suffixed && name != ""
}

// answerFormat returns the format of the answer: the one that Accept prefers by its q values,
// the first one of equals; the body's format if Accept names neither.
func answerFormat(r *http.Request) bodyscan.Format {
	var best float64
	preferred, _ := bodyFormat(r.Header)
	for _, line := range r.Header["Accept"] {
		for part := range strings.SplitSeq(line, ",") {
			t, params, _ := strings.Cut(part, ";")
			if f, known := formatOf(t); known {
				if q := quality(params); q > best {
					preferred, best = f, q
				}
			}
		}
	}
	return preferred
}

// quality returns the q parameter of a media range, 1 if it is missing or malformed.
func quality(params string) float64 {
	for p := range strings.SplitSeq(params, ";") {
		if v, ok := strings.CutPrefix(strings.ToLower(strings.TrimSpace(p)), "q="); ok {
			if q, err := strconv.ParseFloat(v, 64); err == nil {
				return q
			}
		}
	}
	return 1
}
