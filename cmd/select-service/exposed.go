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

// warnOfFiles warns of configured files with secrets that other users of this machine may read
// or write, and of a directory for the state on disk that they may write to.
func warnOfFiles(conf config.Config, log zerolog.Logger) {
	check := func(path string, bits fs.FileMode, text string) {
		info, err := os.Stat(path) // a missing file is reported where it is read
		if path == "" || err != nil || info.Mode().Perm()&bits == 0 {
			return
		}
		log.Warn().Str("file", path).Str("mode", fmt.Sprintf("%04o", info.Mode().Perm())).Msg(text)
	}
	for _, path := range []string{
		conf.TLS.Key, conf.TLS.PeerKey, conf.Access.TokensFile, conf.Replicas.PeerTokenFile, conf.TLS.EngineKey, conf.Engines.TokenFile,
		conf.Fleet.Key, conf.Fleet.Credentials,
	} {
		check(path, 0o077, "others on this machine may use this file with secrets")
	}
	check(conf.Data.Dir, 0o022, "others on this machine may write into the data directory")
}

// warnOfPublisher warns that anyone who can reach the publisher of reservations may read them,
// and that any endpoint may be registered as a peer.
func warnOfPublisher(conf config.Config, log zerolog.Logger) {
	endpoint := conf.Replicas.Publish()
	if endpoint == "" || len(conf.Access.AllowEndpoints) > 0 {
		return
	}
	if e, err := catalog.ParseEndpoint(endpoint); err == nil {
		at, err := netip.ParseAddr(e.Host)
		if e.Scheme != "tcp" || e.Host == "localhost" || err == nil && at.IsLoopback() {
			return
		}
	}
	log.Warn().Str("endpoint", endpoint).
		Msg("anybody who reaches this endpoint may read all reservations, and be registered as a peer: there is no --allow-endpoints")
}
