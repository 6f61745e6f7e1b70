package chart

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/test/helpers/kubetest"
)

// administrator returns a kubeconfig of a real API server, of TEST_KUBECONFIG or one that is
// started. Where there is neither the test is skipped.
func administrator(t *testing.T) string {
	t.Helper()
	if kubeconfig := os.Getenv("TEST_KUBECONFIG"); kubeconfig != "" {
		return kubeconfig
	}
	if os.Getenv(kubetest.BinariesEnv) == "" {
		t.Skipf("neither TEST_KUBECONFIG nor %s leads to an API server", kubetest.BinariesEnv)
	}
	return kubetest.NewCluster(t).AdminKubeconfig()
}

// chartOf makes a chart of one object, which helm installs as it is.
func chartOf(t *testing.T, object any) string {
	t.Helper()
	text, err := yaml.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string]string{
		"Chart.yaml":            "{apiVersion: v2, name: object, version: 1.0.0}\n",
		"templates/object.yaml": string(text),
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestInstall proves that a real API server takes the chart, an upgrade of it and its
// removal, and a pod of its Deployment in a namespace that enforces the Pod Security
// Standard restricted, which refuses the same pod when it wants to be privileged. The
// server has the CRD of InferencePool.
func TestInstall(t *testing.T) {
	const namespace = "chart-test"
	kubeconfig := administrator(t)
	onServer := func(t *testing.T, args ...string) []byte {
		t.Helper()
		return helm(t, append(args, "--kubeconfig", kubeconfig)...)
	}
	onServer(t, "install", "namespace", chartOf(t, map[string]any{
		"apiVersion": "v1", "kind": "Namespace",
		"metadata": map[string]any{"name": namespace, "labels": map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}},
	}), "--namespace", "default")
	t.Cleanup(func() { onServer(t, "uninstall", "namespace", "--namespace", "default") })

	onServer(t, "install", "select-service", "deploy/chart", "--namespace", namespace)
	onServer(t, "upgrade", "select-service", "deploy/chart", "--namespace", namespace,
		"--set", "replicas=3,provider=agentgateway,drain.timeoutSeconds=60,pools[0].targetPorts={8000,8001},pools[0].create=true,pools[0].name=llm,pools[0].matchLabels.app=sglang")
	manifest := onServer(t, "get", "manifest", "select-service", "--namespace", namespace)
	if !strings.Contains(string(manifest), "replicas: 3\n") {
		t.Errorf("after the upgrade:\n%s", manifest)
	}

	for _, doc := range strings.Split(string(manifest), "\n---\n") {
		var d struct {
			Kind string
			Spec struct {
				Template struct {
					Metadata map[string]any
					Spec     map[string]any
				}
			}
		}
		if err := yaml.Unmarshal([]byte(doc), &d); err != nil {
			t.Fatal(err)
		}
		if d.Kind != "Deployment" {
			continue
		}
		pod := d.Spec.Template
		pod.Metadata["name"] = "pod"
		object := map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": pod.Metadata, "spec": pod.Spec}
		onServer(t, "install", "pod", chartOf(t, object), "--namespace", namespace)
		onServer(t, "uninstall", "pod", "--namespace", namespace)
		security, _ := pod.Spec["containers"].([]any)[0].(map[string]any)["securityContext"].(map[string]any)
		security["privileged"] = true
		security["allowPrivilegeEscalation"] = true
		if out, err := helmCommand(t, "install", "privileged", chartOf(t, object), "--namespace", namespace, "--kubeconfig", kubeconfig); err == nil ||
			!strings.Contains(string(out), "violates PodSecurity") {
			t.Errorf("a privileged pod: %v\n%s", err, out)
		}
	}
	onServer(t, "uninstall", "select-service", "--namespace", namespace)
	if left := onServer(t, "list", "--all", "--short", "--namespace", namespace); strings.Contains(string(left), "select-service") {
		t.Errorf("after removal: %s", left)
	}
}
