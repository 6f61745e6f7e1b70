// Package access decides who may call which routes. A [Guard] authenticates the [Caller] of a
// request by its bearer token or its verified client certificate, with the tokens file that it
// follows; every route requires a [Role]. [CheckOrigin] and [Hosts] refuse what pages of
// foreign sites make browsers send.
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
// It is read as strictly as the workers file. The file has only the hashes of tokens, and
// neither tokens nor hashes are logged.
package access
