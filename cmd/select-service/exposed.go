package main

import (
	"fmt"
	"io/fs"
	"net/netip"
	"os"

	"github.com/rs/zerolog"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/pkg/catalog"
)

// warnOfFiles logs which of the configured files with secrets others on this machine may
// use, and whether they may write into the directory of the state on disk.
func warnOfFiles(conf config.Config, log zerolog.Logger) {
	check := func(path string, bits fs.FileMode, text string) {
		info, err := os.Stat(path) // who needs the file says that it is missing
		if path == "" || err != nil || info.Mode().Perm()&bits == 0 {
			return
		}
		log.Warn().Str("file", path).Str("mode", fmt.Sprintf("%04o", info.Mode().Perm())).Msg(text)
	}
	for _, path := range []string{
		conf.TLS.Key, conf.TLS.PeerKey, conf.Access.TokensFile, conf.Replicas.PeerTokenFile, conf.Curve.SecretKeyFile, conf.Curve.ReplicaKeyFile,
	} {
		check(path, 0o077, "others on this machine may use this file with secrets")
	}
	check(conf.Data.Dir, 0o022, "others on this machine may write into the data directory")
}

// warnOfPublisher logs that anybody who reaches the publisher of reservations may read
// them, and that anything may be registered as a peer.
func warnOfPublisher(conf config.Config, log zerolog.Logger) {
	endpoint := conf.Replicas.Publish()
	if endpoint == "" || conf.Curve.ReplicaKeyFile != "" || len(conf.Access.AllowEndpoints) > 0 {
		return
	}
	if e, err := catalog.ParseEndpoint(endpoint); err == nil {
		at, err := netip.ParseAddr(e.Host)
		if e.Scheme != "tcp" || e.Host == "localhost" || err == nil && at.IsLoopback() {
			return
		}
	}
	log.Warn().Str("endpoint", endpoint).
		Msg("anybody who reaches this endpoint may read all reservations, and be registered as a peer: there is neither --zmq-curve-replica-key-file nor --allow-endpoints")
}
