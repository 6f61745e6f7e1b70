package kubetest

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// Cluster is a real kube-apiserver with etcd, without kubelets and controllers. It has the
// namespace llm, the definition of InferencePools and an account that may read. Methods end the
// test if the server refuses something.
type Cluster struct {
	t    *testing.T
	dir  string
	bin  string
	url  string
	etcd string // its URL
	// api is the running server; nil: killed.
	api    *exec.Cmd
	client *http.Client
	admin  string // the token of the administrator

	put        map[string]Object // the last Put of each pod, as the test gave it
	namespaces map[string]bool
}

const (
	clusterStarts = 2 * time.Minute // at most
	account       = "select-service"
	crds          = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	rbac          = "/apis/rbac.authorization.k8s.io/v1/namespaces/"
)

// DefinitionsEnv names the folder with the definition of InferencePools, as a file of its module.
const DefinitionsEnv = "TEST_KUBE_CRDS"

// NewCluster starts a server with the programs of BinariesEnv and the definition of DefinitionsEnv,
// that ends with the test.
func NewCluster(t *testing.T) *Cluster {
	t.Helper()
	c := &Cluster{
		t: t, dir: t.TempDir(), bin: os.Getenv(BinariesEnv), admin: rand.Text(),
		put: make(map[string]Object), namespaces: make(map[string]bool),
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	c.must(err)
	c.write("sa.key", pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}))
	c.write("tokens.csv", fmt.Appendf(nil, "%s,admin,1,system:masters\n", c.admin))
	c.etcd, c.url = "http://"+c.free(), "https://"+c.free()
	peer := "http://" + c.free()
	c.run("etcd", "--data-dir", filepath.Join(c.dir, "etcd"), "--name", "t", "--unsafe-no-fsync", "--log-level", "error",
		"--listen-client-urls", c.etcd, "--advertise-client-urls", c.etcd,
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "t="+peer)
	c.Start()
	c.Install(true)
	c.namespace("llm")
	return c
}

// Namespace creates a namespace, whose objects the account may read, if it does not exist.
func (c *Cluster) namespace(name string) {
	if c.namespaces[name] {
		return
	}
	c.namespaces[name] = true
	c.call(http.MethodPost, "/api/v1/namespaces", Object{"metadata": Object{"name": name}})
	c.call(http.MethodPost, rbac+name+"/roles", Object{
		"metadata": Object{"name": account},
		"rules": []Object{
			{"apiGroups": []string{""}, "resources": []string{"pods"}, "verbs": []string{"get", "list", "watch"}},
			{"apiGroups": []string{"inference.networking.k8s.io"}, "resources": []string{"inferencepools"}, "verbs": []string{"get", "list", "watch"}},
			{"apiGroups": []string{"discovery.k8s.io"}, "resources": []string{"endpointslices"}, "verbs": []string{"get", "list", "watch"}},
		},
	})
	c.bind(name)
	if name == "llm" {
		c.call(http.MethodPost, "/api/v1/namespaces/llm/serviceaccounts", Object{"metadata": Object{"name": account}})
	}
}

func (c *Cluster) bind(namespace string) {
	c.call(http.MethodPost, rbac+namespace+"/rolebindings", Object{
		"metadata": Object{"name": account},
		"roleRef":  Object{"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": account},
		"subjects": []Object{{"kind": "ServiceAccount", "name": account, "namespace": "llm"}},
	})
}

// Allow is part of API: the RoleBindings of the account are there or not.
func (c *Cluster) Allow(allowed bool) {
	for namespace := range c.namespaces {
		if allowed {
			c.bind(namespace)
		} else {
			c.call(http.MethodDelete, rbac+namespace+"/rolebindings/"+account, nil)
		}
	}
}

// Install is part of API.
func (c *Cluster) Install(present bool) {
	if !present {
		c.call(http.MethodDelete, crds+"/inferencepools.inference.networking.k8s.io", nil)
		return
	}
	text, err := os.ReadFile(filepath.Join(os.Getenv(DefinitionsEnv), "inference.networking.k8s.io_inferencepools.yaml"))
	c.must(err)
	var definition Object
	c.must(yaml.Unmarshal(text, &definition))
	c.await("the definition of InferencePools is taken", func() bool {
		status, _ := c.request(http.MethodPost, crds, definition)
		return status == http.StatusCreated // not while the former one is being deleted
	})
	c.await("InferencePools are served", func() bool {
		status, _ := c.request(http.MethodGet, pathOf("inferencepools", "llm", ""), nil)
		return status == http.StatusOK
	})
}

// Kubeconfig is part of API: it has a bound token of the ServiceAccount.
func (c *Cluster) Kubeconfig(testing.TB) string {
	answer := c.call(http.MethodPost, "/api/v1/namespaces/llm/serviceaccounts/"+account+"/token", Object{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": Object{"expirationSeconds": 3600},
	})
	return c.kubeconfig(account, answer["status"].(Object)["token"].(string))
}

// AdminKubeconfig writes a kubeconfig of the administrator, and returns its path.
func (c *Cluster) AdminKubeconfig() string { return c.kubeconfig("admin", c.admin) }

func (c *Cluster) kubeconfig(name, token string) string {
	authority, err := os.ReadFile(filepath.Join(c.dir, "certs", "apiserver.crt"))
	c.must(err)
	return c.write(name+".kubeconfig", []byte(kubeconfig(c.url, authority, fmt.Sprintf("token: %q", token))))
}

// ApplyFile applies the objects of a file of YAML documents, each as edit changes it; nil changes
// none.
func (c *Cluster) ApplyFile(path string, edit func(Object)) {
	c.t.Helper()
	text, err := os.ReadFile(path)
	c.must(err)
	for decoder := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var o Object
		err := decoder.Decode(&o)
		if errors.Is(err, io.EOF) {
			return
		}
		c.must(err)
		if len(o) == 0 {
			continue
		}
		if edit != nil {
			edit(o)
		}
		c.Apply(o, "")
	}
}

// Apply creates or changes an object of any kind whose definition the server has, or a subresource
// of it such as "status". It waits for a definition that was applied just before.
func (c *Cluster) Apply(o Object, subresource string) {
	c.t.Helper()
	path := c.pathTo(o["apiVersion"].(string), o["kind"].(string), o["metadata"].(Object))
	if subresource != "" {
		path += "/" + subresource
	}
	status, answer := 0, Object(nil)
	c.await("the server serves "+path, func() bool {
		status, answer = c.request(http.MethodPatch, path+"?fieldManager=test&force=true", applied{o})
		return status != http.StatusNotFound
	})
	if status >= 300 || status == 0 {
		c.t.Fatalf("apply %s: %d %v", path, status, answer["message"])
	}
}

// pathTo returns where an object of any kind is; those with a namespace are in it.
func (c *Cluster) pathTo(version, kind string, meta Object) string {
	plural := strings.ToLower(kind)
	switch {
	case strings.HasSuffix(plural, "y") && !strings.HasSuffix(plural, "ay"): // not gateways
		plural = strings.TrimSuffix(plural, "y") + "ies"
	case strings.HasSuffix(plural, "s"):
		plural += "es"
	default:
		plural += "s"
	}
	path := "/apis/" + version
	if version == "v1" {
		path = "/api/v1"
	}
	if namespace, _ := meta["namespace"].(string); namespace != "" {
		c.namespace(namespace)
		path += "/namespaces/" + namespace
	}
	return path + "/" + plural + "/" + meta["name"].(string)
}

// Read returns an object of any kind, nil if there is none.
func (c *Cluster) Read(version, kind, namespace, name string) Object {
	c.t.Helper()
	status, answer := c.request(http.MethodGet, c.pathTo(version, kind, Object{"namespace": namespace, "name": name}), nil)
	switch status {
	case http.StatusOK:
		return answer
	case http.StatusNotFound:
		return nil
	}
	c.t.Fatalf("%s %s/%s: %d %v", kind, namespace, name, status, answer)
	return nil
}

// List returns the objects of any kind in a namespace.
func (c *Cluster) List(version, kind, namespace string) (all []Object) {
	c.t.Helper()
	path := c.pathTo(version, kind, Object{"namespace": namespace, "name": ""})
	for _, o := range c.call(http.MethodGet, strings.TrimSuffix(path, "/"), nil)["items"].([]any) {
		all = append(all, o.(Object))
	}
	return all
}

// Put is part of API.
func (c *Cluster) Put(resource string, o Object) {
	c.t.Helper()
	meta := o["metadata"].(Object)
	namespace, name := meta["namespace"].(string), meta["name"].(string)
	c.namespace(namespace)
	if resource == "pods" {
		c.putPod(namespace, name, o)
		return
	}
	sent := Object{"metadata": without(meta, "uid", "creationTimestamp"), "kind": kindOf[resource], "apiVersion": versionOf[resource]}
	for key, value := range o {
		if key != "metadata" {
			sent[key] = value
		}
	}
	at := pathOf(resource, namespace, "")
	old := c.Get(resource, namespace, name)
	if old == nil {
		c.call(http.MethodPost, at, sent)
		return
	}
	sent["metadata"].(Object)["resourceVersion"] = old["metadata"].(Object)["resourceVersion"]
	c.call(http.MethodPut, at+"/"+name, sent)
}

// putPod makes a pod as its owner and its kubelet would.
func (c *Cluster) putPod(namespace, name string, o Object) {
	c.t.Helper()
	all := pathOf("pods", namespace, "")
	at := all + "/" + name
	meta, key := o["metadata"].(Object), namespace+"/"+name
	before := c.put[key]
	if before != nil && (before["metadata"].(Object)["uid"] != meta["uid"] || !reflect.DeepEqual(before["spec"], o["spec"])) {
		c.Delete("pods", namespace, name) // another pod, or a spec that cannot be changed
		before = nil
	}
	grace, ends := graceOf(o)
	c.put[key] = o
	switch {
	case before == nil:
		var containers []Object
		for _, one := range o["spec"].(Object)["containers"].([]Object) {
			containers = append(containers, Object{"name": one["name"], "image": "engine", "ports": one["ports"]})
		}
		c.call(http.MethodPost, all, Object{
			"metadata": without(meta, "uid", "creationTimestamp", "deletionTimestamp"),
			"spec":     Object{"nodeName": "node", "containers": containers, "terminationGracePeriodSeconds": 30},
		})
	case !reflect.DeepEqual(before["metadata"], meta):
		now := c.call(http.MethodGet, at, nil)
		for _, member := range []string{"labels", "annotations"} {
			now["metadata"].(Object)[member] = meta[member]
		}
		c.call(http.MethodPut, at, now)
	}
	if before == nil || !reflect.DeepEqual(before["status"], o["status"]) {
		status := without(o["status"].(Object))
		status["podIPs"] = []Object{{"ip": status["podIP"]}}
		c.call(http.MethodPatch, at+"/status", Object{"status": status}) // a PUT would take the labels away
	}
	if ends {
		c.call(http.MethodDelete, fmt.Sprintf("%s?gracePeriodSeconds=%d", at, int(math.Ceil(grace.Seconds()))), nil)
	}
}

// Delete is part of API.
func (c *Cluster) Delete(resource, namespace, name string) {
	c.t.Helper()
	delete(c.put, namespace+"/"+name)
	at := pathOf(resource, namespace, name)
	if resource == "pods" {
		at += "?gracePeriodSeconds=0"
	}
	c.call(http.MethodDelete, at, nil)
}

// Get is part of API.
func (c *Cluster) Get(resource, namespace, name string) Object {
	c.t.Helper()
	status, answer := c.request(http.MethodGet, pathOf(resource, namespace, name), nil)
	switch status {
	case http.StatusOK:
		return answer
	case http.StatusNotFound:
		return nil
	}
	c.t.Fatalf("%s %s/%s: %d %v", resource, namespace, name, status, answer)
	return nil
}

// Kill is part of API.
func (c *Cluster) Kill() {
	c.Thaw()
	_ = c.api.Process.Kill()
	_ = c.api.Wait()
	c.client.CloseIdleConnections()
	c.api = nil
}

// Start is part of API.
func (c *Cluster) Start() {
	c.t.Helper()
	host, port, err := net.SplitHostPort(c.url[len("https://"):])
	c.must(err)
	key := filepath.Join(c.dir, "sa.key")
	c.api = c.run("kube-apiserver", "--etcd-servers", c.etcd, "--bind-address", host, "--secure-port", port, "--advertise-address", "10.77.0.1",
		"--cert-dir", filepath.Join(c.dir, "certs"), "--service-cluster-ip-range", "10.0.0.0/24", "--endpoint-reconciler-type", "none",
		"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", key, "--service-account-signing-key-file", key,
		"--token-auth-file", filepath.Join(c.dir, "tokens.csv"), "--authorization-mode", "RBAC",
		"--disable-admission-plugins", "ServiceAccount", "--allow-privileged", "--profiling=false", "--v", "0")
	c.await("the API server is ready", func() bool {
		if c.client == nil {
			c.client = c.newClient()
			if c.client == nil {
				return false
			}
		}
		status, _ := c.request(http.MethodGet, "/readyz", nil)
		return status == http.StatusOK
	})
}

// newClient returns a client that trusts the server, nil before that has a certificate.
func (c *Cluster) newClient() *http.Client {
	authority, err := os.ReadFile(filepath.Join(c.dir, "certs", "apiserver.crt"))
	if err != nil {
		return nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(authority) {
		return nil
	}
	return &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true}}
}

// Freeze is part of API.
func (c *Cluster) Freeze() { c.must(c.api.Process.Signal(syscall.SIGSTOP)) }

// Thaw is part of API.
func (c *Cluster) Thaw() { c.must(c.api.Process.Signal(syscall.SIGCONT)) }

// run starts a program that is killed at the end of the test.
func (c *Cluster) run(name string, args ...string) *exec.Cmd {
	c.t.Helper()
	log, err := os.OpenFile(filepath.Join(c.dir, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	c.must(err)
	defer log.Close()
	cmd := exec.Command(filepath.Join(c.bin, name), args...)
	cmd.Stdout, cmd.Stderr = log, log
	c.must(cmd.Start())
	c.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// applied is the body of a server-side apply.
type applied struct{ Object }

// MarshalJSON implements json.Marshaler.
func (a applied) MarshalJSON() ([]byte, error) { return json.Marshal(a.Object) }

// call makes a request that must succeed.
func (c *Cluster) call(method, path string, body any) Object {
	c.t.Helper()
	status, answer := c.request(method, path, body)
	if status >= 300 || status == 0 {
		c.t.Fatalf("%s %s: %d %v", method, path, status, answer["message"])
	}
	return answer
}

// request returns 0 where there is no answer.
func (c *Cluster) request(method, path string, body any) (status int, answer Object) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), clusterStarts)
	defer cancel()
	var sent io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		c.must(err)
		sent = bytes.NewReader(text)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.url+path, sent)
	c.must(err)
	req.Header.Set("Authorization", "Bearer "+c.admin)
	req.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		req.Header.Set("Content-Type", "application/merge-patch+json")
		if _, whole := body.(applied); whole {
			req.Header.Set("Content-Type", "application/apply-patch+yaml") // JSON is YAML
		}
	}
	resp, err := c.client.Do(req)
	if err != nil {
		return 0, Object{"message": err.Error()}
	}
	defer resp.Body.Close()
	_ = json.NewDecoder(resp.Body).Decode(&answer) // /readyz has none
	return resp.StatusCode, answer
}

func (c *Cluster) await(what string, holds func() bool) {
	c.t.Helper()
	for end := time.Now().Add(clusterStarts); !holds(); <-time.After(20 * time.Millisecond) {
		if time.Now().After(end) {
			log, _ := os.ReadFile(filepath.Join(c.dir, "kube-apiserver.log"))
			c.t.Fatalf("waited in vain: %s\n%s", what, log[max(0, len(log)-4000):])
		}
	}
}

func (c *Cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *Cluster) write(name string, content []byte) string {
	path := filepath.Join(c.dir, name)
	c.must(os.WriteFile(path, content, 0o600))
	return path
}

// free returns an address that nobody listens at.
func (c *Cluster) free() string {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	c.must(err)
	defer ln.Close()
	return ln.Addr().String()
}

// pathOf returns where objects of a resource are.
func pathOf(resource, namespace, name string) string {
	path := "/apis/" + versionOf[resource]
	if versionOf[resource] == "v1" {
		path = "/api/v1"
	}
	path += "/namespaces/" + namespace + "/" + resource
	if name != "" {
		path += "/" + name
	}
	return path
}

// without returns a copy of an object that lacks some members.
func without(o Object, members ...string) Object {
	copied := make(Object, len(o))
	for key, value := range o {
		copied[key] = value
	}
	for _, m := range members {
		delete(copied, m)
	}
	return copied
}

// kubeconfig returns a kubeconfig for a user with the given credentials.
func kubeconfig(url string, authority []byte, user string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]\nusers: [{name: u, user: {%s}}]\n"+
		"contexts: [{name: x, context: {cluster: c, user: u, namespace: llm}}]\ncurrent-context: x\n", url, base64.StdEncoding.EncodeToString(authority), user)
}
