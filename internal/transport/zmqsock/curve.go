package zmqsock

import (
	"github.com/select-service/select-service/internal/transport/curve"
	"github.com/select-service/select-service/internal/transport/zmtp"
)

func plain() zmtp.Mechanism { return zmtp.Null{} }

// replicaMechanism returns the mechanism for connections with other replicas, which share one
// CURVE key pair, nil for plain text. server: those that they make to this process.
func replicaMechanism(pair *curve.KeyPair, server bool) func() zmtp.Mechanism {
	switch {
	case pair == nil:
		return plain
	case server:
		return func() zmtp.Mechanism {
			return zmtp.CurveServer(pair, func(k curve.PublicKey) bool { return k == pair.Public })
		}
	}
	return func() zmtp.Mechanism { return zmtp.CurveClient(pair, pair.Public) }
}
