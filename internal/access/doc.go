// Package access says who may call which routes. A [Guard] finds the [Caller] of a
// request by its bearer token or its verified client certificate, in the tokens file
// that it follows; every route has a [Role]. [CheckOrigin] and [Hosts] refuse what
// the pages of foreign sites make browsers send.
//
// The file is YAML:
//
//	tokens:
//	  - name: gateway         # who, in the audit lines
//	    sha256: 5e88…         # of the token, 64 hexadecimal digits
//	    roles: [call]
//	    tenant: acme          # optional, and model: the caller's scope
//	names:
//	  - name: replica-1       # common name or alternative name of a client certificate
//	    roles: [peer]
//
// It is read as strictly as the workers file. A token is known by its hash alone, and
// neither tokens nor hashes are logged.
package access
