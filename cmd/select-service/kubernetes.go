package main

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/select-service/select-service/internal/config"
	"github.com/select-service/select-service/internal/node"
	"github.com/select-service/select-service/internal/workers"
	"github.com/select-service/select-service/internal/workers/kubernetes"
	"github.com/select-service/select-service/internal/workers/kubernetes/mapping"
	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
)

// namespaceFile has the namespace of a pod's ServiceAccount.
const namespaceFile = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"

// cluster is what the configuration says of Kubernetes; nil: nothing of it is used.
type cluster struct {
	client  *kubernetes.Client
	home    string // the namespace of this process
	podIP   netip.Addr
	entries []mapping.Entry
	peers   string                // the Service of the replicas, "" for none
	pods    *kubernetes.Discovery // set by source
}

func (*cluster) kind() catalog.SourceKind { return catalog.SourceKubernetes }

var errNoPodIP = errors.New("--kube-peer-service: POD_IP is not set: give the pod its status.podIP as an environment variable")

// readCluster checks what the configuration says of Kubernetes, without asking the API server.
// An error is a fault of the configuration.
func readCluster(conf config.Config, getenv func(string) string) (*cluster, error) {
	k := conf.Kubernetes
	if conf.SlotsOnly || !k.Enabled() && conf.Replicas.KubePeerService == "" {
		return nil, nil
	}
	c := &cluster{home: getenv("POD_NAMESPACE"), peers: conf.Replicas.KubePeerService}
	if c.home == "" {
		content, _ := os.ReadFile(namespaceFile) // missing outside of clusters
		c.home = strings.TrimSpace(string(content))
	}
	var faults []error
	add := func(err error) {
		if err != nil {
			faults = append(faults, err)
		}
	}
	var err error
	c.entries, err = k.Entries(c.home)
	add(err)
	if c.home == "" { // a process outside of clusters is at home where its workers are
		c.home = k.Named.Namespace
		if c.home == "" && len(c.entries) > 0 {
			c.home = c.entries[0].Namespace
		}
	}
	if ip := getenv("POD_IP"); ip != "" {
		c.podIP, err = netip.ParseAddr(ip)
		add(err)
	} else if c.peers != "" {
		add(errNoPodIP)
	}
	if len(faults) > 0 {
		return nil, &config.InvalidError{Faults: faults}
	}
	return c, nil
}

// connect reads how the API server is reached. A configuration is also checked outside of its cluster.
func (c *cluster) connect(conf config.Config, check bool) (err error) {
	path := conf.Kubernetes.Kubeconfig
	if check && path == "" {
		return nil
	}
	if c.client, err = kubernetes.Dial(path); err != nil {
		return &config.InvalidError{Faults: []error{err}}
	}
	return nil
}

// allowLoopback is for tests: pods may have addresses of the loopback.
const allowLoopback = "SELECT_SERVICE_KUBE_ALLOW_LOOPBACK"

// source returns the discovery of workers and replicas.
func (c *cluster) source(of sourceParts) workers.Source {
	c.pods = kubernetes.New(kubernetes.Config{
		Settings: mapping.Settings{
			Home: c.home, KVEvents: of.conf.KVEvents.Enabled,
			AllowLoopback: of.getenv(allowLoopback) == "true",
		},
		Entries: c.entries, Catalog: of.svc.Catalog(), IPv6: c.podIP.Is6() && !c.podIP.Is4In6(), Peers: c.replicas(of.conf, of.svc),
		Memory: of.budget.Account(memory.Bodies), Log: of.log,
	}, c.client)
	return c.pods
}

// models lists the scopes of the models that the entries name, which may have no pods now.
func (c *cluster) models() (named []catalog.Scope) {
	for _, e := range c.entries {
		if e.Model != "" {
			named = append(named, catalog.Scope{Model: e.Model, Tenant: e.Tenant})
		}
	}
	return named
}

// replicas says how the other replicas are found, nil if they are not.
func (c *cluster) replicas(conf config.Config, svc *node.Service) *kubernetes.PeersConfig {
	if c.peers == "" {
		return nil
	}
	e, _ := catalog.ParseEndpoint(conf.Replicas.Publish()) // config has checked it
	return &kubernetes.PeersConfig{
		Service: c.peers, Namespace: c.home, Self: c.podIP, SyncPort: e.Port, HTTPPort: conf.Server.Port, Scheme: schemeOf(conf),
		Follow: svc.UseCases.RegisterPeer, Unfollow: svc.UseCases.DeregisterPeer,
	}
}

// advertise returns the base URL of this replica for others, "" if it is not found in Kubernetes.
func (c *cluster) advertise(conf config.Config) string {
	if c == nil || c.peers == "" {
		return ""
	}
	return schemeOf(conf) + "://" + net.JoinHostPort(c.podIP.String(), strconv.Itoa(int(conf.Server.Port)))
}

func schemeOf(conf config.Config) string {
	if conf.TLS.Cert != "" {
		return "https"
	}
	return "http"
}
