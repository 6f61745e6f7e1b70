package kubernetes

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"

	"github.com/select-service/select-service/pkg/catalog"
	"github.com/select-service/select-service/pkg/memory"
)

const (
	// A connection without messages for pingAfter is pinged, and given up without an answer
	// within pingTimeout, so that a server that hangs is noticed within their sum.
	pingAfter   = 15 * time.Second
	pingTimeout = 10 * time.Second
	// dialTimeout bounds a connection's start, headerTimeout the time to the head of an answer.
	dialTimeout   = 10 * time.Second
	headerTimeout = 30 * time.Second
	// maxEvent bounds an object of a watch in bytes; an API server stores no object of that size.
	maxEvent = 4 << 20
	// maxPage bounds the answer to a LIST of pageSize objects, in bytes.
	maxPage  = 256 << 20
	pageSize = 500
)

// groupPools is the API group of InferencePools.
var groupPools = schema.GroupVersion{Group: "inference.networking.k8s.io", Version: "v1"}

// Client reaches an API server.
type Client struct {
	core   rest.Interface // pods
	slices rest.Interface // EndpointSlices
	pools  rest.Interface // InferencePools
	reads  *bounded
}

// Dial returns a client of the API server that a kubeconfig file names; "" is the one of the
// cluster that the process runs in. It does not connect. The credentials are those of client-go: a
// token, a file with one, which is read again within a minute and after a 401, a client certificate, or
// a command that gives either (exec: EKS, GKE, AKS). The command gets no terminal.
func Dial(kubeconfig string) (*Client, error) { return dial(kubeconfig, pingAfter, pingTimeout) }

// dial is Dial with other times of pings.
func dial(kubeconfig string, pingAfter, pingTimeout time.Duration) (*Client, error) {
	config, err := restConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	tlsConfig, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, fmt.Errorf("certificates of the API server: %w", err)
	}
	proxy := config.Proxy // the kubeconfig's
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	base := &http.Transport{
		Proxy:               proxy,
		DialContext:         (&net.Dialer{Timeout: dialTimeout}).DialContext,
		TLSClientConfig:     tlsConfig,
		TLSHandshakeTimeout: dialTimeout, ResponseHeaderTimeout: headerTimeout,
		ForceAttemptHTTP2: true, IdleConnTimeout: 90 * time.Second,
		HTTP2: &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout},
	}
	if config.BearerTokenFile != "" {
		config.Wrap(transport.ResettableTokenSourceWrapTransport(transport.NewCachedFileTokenSource(config.BearerTokenFile)))
		config.BearerToken, config.BearerTokenFile = "", ""
	}
	reads := &bounded{next: base}
	wrapped, err := rest.HTTPWrappersForConfig(config, reads)
	if err != nil {
		return nil, fmt.Errorf("credentials for the API server: %w", err)
	}
	return newClient(config, &http.Client{Transport: wrapped}, reads)
}

// newClient returns a client whose requests go through an HTTP client, which reads through reads.
func newClient(config *rest.Config, httpClient *http.Client, reads *bounded) (*Client, error) {
	c := &Client{reads: reads}
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Pod{}, &corev1.PodList{})
	scheme.AddKnownTypes(discoveryv1.SchemeGroupVersion, &discoveryv1.EndpointSlice{}, &discoveryv1.EndpointSliceList{})
	scheme.AddKnownTypeWithName(groupPools.WithKind("InferencePool"), &inferencePool{})
	scheme.AddKnownTypeWithName(groupPools.WithKind("InferencePoolList"), &inferencePoolList{})
	for _, gv := range []schema.GroupVersion{corev1.SchemeGroupVersion, discoveryv1.SchemeGroupVersion, groupPools} {
		metav1.AddToGroupVersion(scheme, gv)
	}
	codecs := serializer.NewCodecFactory(scheme).WithoutConversion()
	for _, part := range []struct {
		to   *rest.Interface
		path string
		gv   schema.GroupVersion
	}{{&c.core, "/api", corev1.SchemeGroupVersion}, {&c.slices, "/apis", discoveryv1.SchemeGroupVersion}, {&c.pools, "/apis", groupPools}} {
		of := *config
		of.APIPath, of.GroupVersion, of.NegotiatedSerializer = part.path, &part.gv, codecs
		to, err := rest.RESTClientForConfigAndClient(&of, httpClient)
		if err != nil {
			return nil, fmt.Errorf("API server %s: %w", config.Host, err)
		}
		*part.to = to
	}
	return c, nil
}

// errNoCluster is the fault of a process outside a cluster that is not told an API server.
var errNoCluster = errors.New("this process is not in a cluster, and no --kubeconfig names an API server")

func restConfig(path string) (*rest.Config, error) {
	config, err := inCluster(path)
	if err != nil {
		return nil, err
	}
	config.UserAgent = "select-service"
	config.QPS = -1 // a watch or two for each entry need no limit
	config.WarningHandler = rest.NoWarnings{}
	return config, nil
}

func inCluster(path string) (*rest.Config, error) {
	if path == "" {
		config, err := rest.InClusterConfig()
		if errors.Is(err, rest.ErrNotInCluster) {
			err = errNoCluster
		}
		return config, err
	}
	file, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	context := file.Contexts[file.CurrentContext]
	if context == nil {
		return nil, fmt.Errorf("kubeconfig %s: the current context %q is missing", path, file.CurrentContext)
	}
	if user := file.AuthInfos[context.AuthInfo]; user != nil && user.AuthProvider != nil {
		return nil, fmt.Errorf("kubeconfig %s: user %q: auth-provider is not supported, as Kubernetes has removed it: give exec, a token, a tokenFile or a client certificate", path, context.AuthInfo)
	}
	if err := clientcmd.ResolveLocalPaths(file); err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	config, err := clientcmd.NewDefaultClientConfig(*file, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	if config.ExecProvider != nil {
		config.ExecProvider.StdinUnavailable, config.ExecProvider.StdinUnavailableMessage = true, "a service has no terminal"
	}
	return config, nil
}

// bounded bounds what is read of answers, a page of a LIST and each event of a watch, and counts it
// until it has been read. It refuses redirects.
type bounded struct {
	next   http.RoundTripper
	memory *memory.Account
}

// RoundTrip implements http.RoundTripper.
func (b *bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if to, err := resp.Location(); resp.StatusCode/100 == 3 && err == nil {
		_ = resp.Body.Close()
		return nil, fmt.Errorf("the API server redirects to %s, which is not followed: its credentials are for nobody else", catalog.Clip(to.Host))
	}
	limit := &limitedBody{ReadCloser: resp.Body, most: maxPage, memory: b.memory}
	if watch := r.URL.Query().Get("watch"); watch == "1" || watch == "true" {
		limit.most, limit.lines = maxEvent, true
	}
	resp.Body = limit
	return resp, nil
}

// errTooLarge ends an answer that is, or has an event, larger than is read, errMemory one for which
// memory is short.
var (
	errTooLarge = errors.New("the object is too large")
	errMemory   = errors.New("no memory is left for the answer (--max-memory)")
)

// limitedBody fails after most bytes; of a watch, after so many without the end of a line.
type limitedBody struct {
	io.ReadCloser
	most   int
	lines  bool
	memory *memory.Account

	mu     sync.Mutex // guards the fields below: the end of a watch closes it while it is read
	n      int        // bytes of the answer, or the line, so far; they are reserved
	closed bool
}

// Read implements io.Reader.
func (l *limitedBody) Read(p []byte) (int, error) {
	n, err := l.ReadCloser.Read(p)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return n, err
	}
	held := l.n
	if i := bytes.LastIndexByte(p[:n], '\n'); l.lines && i >= 0 {
		l.n = n - i - 1
	} else {
		l.n += n
	}
	more := l.n - held
	switch {
	case l.n > l.most:
		l.n = held
		return 0, errTooLarge
	case more < 0:
		l.memory.Release(int64(-more))
	case !l.memory.Reserve(int64(more)):
		l.n = held
		return 0, errMemory
	}
	return n, err
}

// Close implements io.Closer.
func (l *limitedBody) Close() error {
	l.mu.Lock()
	l.closed = true
	l.memory.Release(int64(l.n))
	l.n = 0
	l.mu.Unlock()
	return l.ReadCloser.Close()
}
