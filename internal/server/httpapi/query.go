package httpapi

import (
	"net/http"
	"net/url"
	"strings"

	"github.com/select-service/select-service/pkg/catalog"
)

// errGroups refuses a query that has both names of a tenant with different values.
var errGroups = badRequest(queryPrefix + "`" + dialect13.tenantKey() + "` and `" + dialect16.tenantKey() + "` differ")

// filterOf reads the filter of a list. Every dialect accepts all names of the tenant. An empty
// name is a name, not the absence of one.
func filterOf(r *http.Request) (catalog.ScopeFilter, error) {
	var f catalog.ScopeFilter
	var group *string
	err := readQuery(r, func(key string) **string {
		switch key {
		case "model_name":
			return &f.Model
		case dialect13.tenantKey():
			return &f.Tenant
		case dialect16.tenantKey():
			return &group
		}
		return nil
	})
	switch {
	case err != nil || group == nil:
	case f.Tenant == nil:
		f.Tenant = group
	case *f.Tenant != *group:
		err = errGroups
	}
	return f, err
}

const queryPrefix = "Failed to deserialize query string: "

// readQuery reads a query string by the rules of HTML forms into the fields of its
// keys. Keys without a field are ignored; the others may come once.
func readQuery(r *http.Request, fieldOf func(key string) **string) error {
	query := r.URL.RawQuery
	for query != "" {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		rawKey, rawValue, _ := strings.Cut(pair, "=")
		key := formValue(rawKey)
		field := fieldOf(key)
		if field == nil {
			continue
		}
		if *field != nil {
			return badRequest(queryPrefix + "duplicate field `" + key + "`")
		}
		v := formValue(rawValue)
		*field = &v
	}
	return nil
}

// formValue decodes + and percent escapes; a broken escape stands for itself.
func formValue(raw string) string {
	v, err := url.QueryUnescape(raw)
	if err != nil {
		v = raw
	}
	return strings.ToValidUTF8(v, "\ufffd")
}
