package httpapi

import (
	"net/http"
	"net/url"
	"strings"
)

// scopeFilter narrows a list to a model, a tenant or both; nil takes all. An
// empty name is a name like any other.
type scopeFilter struct{ model, tenant *string }

// filterOf reads a query string by the rules of HTML forms. Unknown keys are
// ignored, known ones may come once.
func filterOf(r *http.Request) (scopeFilter, error) {
	var f scopeFilter
	query := r.URL.RawQuery
	for query != "" {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		rawKey, rawValue, _ := strings.Cut(pair, "=")
		var field **string
		key := formValue(rawKey)
		switch key {
		case "model_name":
			field = &f.model
		case "tenant_id":
			field = &f.tenant
		default:
			continue
		}
		if *field != nil {
			return f, &requestError{http.StatusBadRequest, "Failed to deserialize query string: duplicate field `" + key + "`"}
		}
		v := formValue(rawValue)
		*field = &v
	}
	return f, nil
}

// formValue decodes + and percent escapes; a broken escape stands for itself.
func formValue(raw string) string {
	v, err := url.QueryUnescape(raw)
	if err != nil {
		v = raw
	}
	return strings.ToValidUTF8(v, "\ufffd")
}
