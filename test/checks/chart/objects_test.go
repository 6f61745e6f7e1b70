package chart

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/select-service/select-service/test/checks/e2e"
)

// object is what the tests read of a Kubernetes object.
type object struct {
	Kind     string
	Metadata struct {
		Name, Namespace string
		Labels          map[string]string
	}
	Data  map[string]string
	Rules []struct{ Verbs []string }
	Spec  struct {
		Replicas       int
		Selector       yaml.Node
		MaxUnavailable int `yaml:"maxUnavailable"`
		Strategy       struct {
			RollingUpdate struct {
				MaxUnavailable *int `yaml:"maxUnavailable"`
				MaxSurge       *int `yaml:"maxSurge"`
			} `yaml:"rollingUpdate"`
		}
		Ports                    []servicePort
		ClusterIP                string `yaml:"clusterIP"`
		PublishNotReadyAddresses bool   `yaml:"publishNotReadyAddresses"`
		Template                 struct {
			Metadata struct{ Labels map[string]string }
			Spec     pod
		}
		TrafficPolicy struct {
			PortLevelSettings []yaml.Node `yaml:"portLevelSettings"`
		} `yaml:"trafficPolicy"`
		Default struct {
			TimeoutSec int `yaml:"timeoutSec"`
		}
		EndpointPickerRef struct {
			Name string
			Port struct{ Number int }
		} `yaml:"endpointPickerRef"`
		Ingress []struct {
			Ports []struct{ Port string }
			From  []yaml.Node
		}
	}
}

type servicePort struct {
	Name        string
	Port        int
	TargetPort  string `yaml:"targetPort"`
	AppProtocol string `yaml:"appProtocol"`
}

type pod struct {
	ServiceAccountName            string `yaml:"serviceAccountName"`
	EnableServiceLinks            *bool  `yaml:"enableServiceLinks"`
	TerminationGracePeriodSeconds int    `yaml:"terminationGracePeriodSeconds"`
	HostNetwork                   bool   `yaml:"hostNetwork"`
	SecurityContext               struct {
		RunAsNonRoot   bool                  `yaml:"runAsNonRoot"`
		RunAsUser      *int                  `yaml:"runAsUser"`
		RunAsGroup     *int                  `yaml:"runAsGroup"`
		FSGroup        *int                  `yaml:"fsGroup"`
		SeccompProfile struct{ Type string } `yaml:"seccompProfile"`
	} `yaml:"securityContext"`
	TopologySpreadConstraints []struct {
		WhenUnsatisfiable string `yaml:"whenUnsatisfiable"`
	} `yaml:"topologySpreadConstraints"`
	Containers []struct {
		Ports []struct {
			Name          string
			ContainerPort int `yaml:"containerPort"`
		}
		SecurityContext struct {
			RunAsUser                *int  `yaml:"runAsUser"`
			AllowPrivilegeEscalation *bool `yaml:"allowPrivilegeEscalation"`
			ReadOnlyRootFilesystem   bool  `yaml:"readOnlyRootFilesystem"`
			Capabilities             struct{ Drop, Add []string }
		} `yaml:"securityContext"`
		StartupProbe   *probe `yaml:"startupProbe"`
		LivenessProbe  *probe `yaml:"livenessProbe"`
		ReadinessProbe *probe `yaml:"readinessProbe"`
	}
	Volumes []map[string]yaml.Node
}

type probe struct {
	GRPC struct {
		Port    int
		Service string
	} `yaml:"grpc"`
}

func (p *probe) is(service string) bool {
	return p != nil && p.GRPC.Port == 9003 && p.GRPC.Service == service
}

// objects reads a file of Kubernetes objects.
func objects(t *testing.T, content []byte) []object {
	t.Helper()
	var all []object
	for d := yaml.NewDecoder(bytes.NewReader(content)); ; {
		var o object
		err := d.Decode(&o)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if o.Kind != "" {
			all = append(all, o)
		}
	}
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := e2e.Root()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

func read(t *testing.T, elem ...string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(append([]string{root(t)}, elem...)...))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// one returns the only object of a kind with a name.
func one(t *testing.T, all []object, kind, name string) object {
	t.Helper()
	var found []object
	for _, o := range all {
		if o.Kind == kind && o.Metadata.Name == name {
			found = append(found, o)
		}
	}
	if len(found) != 1 {
		t.Fatalf("%d objects are %s %s, want 1", len(found), kind, name)
	}
	return found[0]
}

// eachManifest runs a test on what the chart renders to, in every case.
func eachManifest(t *testing.T, check func(t *testing.T, all []object)) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.file, func(t *testing.T) { check(t, objects(t, read(t, c.file))) })
	}
}

// TestPods proves that the pods are what the Pod Security Standard "restricted" wants,
// with a root that cannot be written to, two of them, spread where that is possible,
// replaced one by one, and that they are asked for their health without TLS.
func TestPods(t *testing.T) {
	eachManifest(t, func(t *testing.T, all []object) {
		deployment := one(t, all, "Deployment", "select-service").Spec
		if u := deployment.Strategy.RollingUpdate; deployment.Replicas < 2 || u.MaxUnavailable == nil || *u.MaxUnavailable != 0 || u.MaxSurge == nil || *u.MaxSurge != 1 {
			t.Errorf("%d replicas, %+v: want 2 and a new one before an old one goes", deployment.Replicas, u)
		}
		if p := one(t, all, "PodDisruptionBudget", "select-service"); p.Spec.MaxUnavailable != 1 {
			t.Errorf("%d may be unavailable, want 1", p.Spec.MaxUnavailable)
		}
		p := deployment.Template.Spec
		if s := p.SecurityContext; !s.RunAsNonRoot || s.SeccompProfile.Type != "RuntimeDefault" || p.HostNetwork {
			t.Errorf("the pod is not restricted: %+v", s)
		}
		for _, v := range p.Volumes {
			for kind := range v {
				if !slices.Contains([]string{"name", "configMap", "secret", "projected", "emptyDir"}, kind) {
					t.Errorf("a volume is a %s", kind)
				}
			}
		}
		if len(p.Containers) != 1 {
			t.Fatalf("%d containers", len(p.Containers))
		}
		c := p.Containers[0]
		if s := c.SecurityContext; s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || !s.ReadOnlyRootFilesystem ||
			!slices.Equal(s.Capabilities.Drop, []string{"ALL"}) || len(s.Capabilities.Add) > 0 {
			t.Errorf("the container is not restricted: %+v", s)
		}
		if !c.StartupProbe.is("liveness") || !c.LivenessProbe.is("liveness") || !c.ReadinessProbe.is("readiness") {
			t.Error("health is not asked for at 9003")
		}
		if p.EnableServiceLinks == nil || *p.EnableServiceLinks {
			t.Error("variables of Services may look like the program's own")
		}
		for _, s := range p.TopologySpreadConstraints {
			if s.WhenUnsatisfiable != "ScheduleAnyway" {
				t.Errorf("a small cluster cannot have all replicas: %+v", s)
			}
		}
		if len(p.TopologySpreadConstraints) != 2 {
			t.Error("replicas are not spread over hosts and zones")
		}
	})
}

// TestReferences proves that objects find each other: Services, budget and policies the
// pods and their ports, the pod its account, pools the picker.
func TestReferences(t *testing.T) {
	eachManifest(t, func(t *testing.T, all []object) {
		template := one(t, all, "Deployment", "select-service").Spec.Template
		ports := make(map[string]int)
		for _, p := range template.Spec.Containers[0].Ports {
			ports[p.Name] = p.ContainerPort
		}
		one(t, all, "ServiceAccount", template.Spec.ServiceAccountName)
		for _, o := range all {
			switch o.Kind {
			case "Service":
				var labels map[string]string
				if err := o.Spec.Selector.Decode(&labels); err != nil || !selects(labels, template.Metadata.Labels) {
					t.Errorf("Service %s selects %v, the pods have %v", o.Metadata.Name, labels, template.Metadata.Labels)
				}
				for _, p := range o.Spec.Ports {
					if ports[p.TargetPort] != p.Port {
						t.Errorf("Service %s, port %s: %d at the pod, %d at the Service", o.Metadata.Name, p.Name, ports[p.TargetPort], p.Port)
					}
				}
			case "Deployment", "PodDisruptionBudget":
				var s struct {
					MatchLabels map[string]string `yaml:"matchLabels"`
				}
				if err := o.Spec.Selector.Decode(&s); err != nil || !selects(s.MatchLabels, template.Metadata.Labels) {
					t.Errorf("%s selects %v, the pods have %v", o.Kind, s.MatchLabels, template.Metadata.Labels)
				}
			case "NetworkPolicy":
				for _, rule := range o.Spec.Ingress {
					for _, p := range rule.Ports {
						if ports[p.Port] == 0 {
							t.Errorf("the policy names port %s, which no pod has", p.Port)
						}
						if p.Port != "grpc" && p.Port != "grpc-health" && len(rule.From) == 0 {
							t.Errorf("everybody reaches port %s", p.Port)
						}
					}
				}
			case "InferencePool":
				picker := one(t, all, "Service", o.Spec.EndpointPickerRef.Name)
				if !slices.ContainsFunc(picker.Spec.Ports, func(p servicePort) bool { return p.Port == o.Spec.EndpointPickerRef.Port.Number }) {
					t.Errorf("pool %s: the picker has no port %d", o.Metadata.Name, o.Spec.EndpointPickerRef.Port.Number)
				}
			case "Role":
				for _, r := range o.Rules {
					if !slices.Equal(r.Verbs, []string{"get", "list", "watch"}) {
						t.Errorf("verbs %v: want to read only", r.Verbs)
					}
				}
			}
		}
	})
}

func selects(selector, labels map[string]string) bool {
	for k, v := range selector {
		if labels[k] != v {
			return false
		}
	}
	return len(selector) > 0
}

// settings is what the tests read of the configuration in the ConfigMap.
type settings struct {
	Gateway struct {
		Port         int
		HealthPort   int           `yaml:"health_port"`
		SelfSigned   bool          `yaml:"self_signed"`
		DrainDelay   time.Duration `yaml:"drain_delay"`
		DrainTimeout time.Duration `yaml:"drain_timeout"`
	}
	Replicas struct {
		KubePeerService string `yaml:"kube_peer_service"`
	}
	Kubernetes struct {
		Pools []struct {
			InferencePool string `yaml:"inference_pool"`
		}
	}
}

// TestSettings proves that the configuration fits the objects: ports, the Service of
// the replicas, the grace, and whether the gateway's port says that it speaks h2c.
func TestSettings(t *testing.T) {
	eachManifest(t, func(t *testing.T, all []object) {
		var s settings
		if err := yaml.Unmarshal([]byte(one(t, all, "ConfigMap", "select-service").Data["select-service.yaml"]), &s); err != nil {
			t.Fatal(err)
		}
		p := one(t, all, "Deployment", "select-service").Spec.Template.Spec
		if want := s.Gateway.DrainDelay + s.Gateway.DrainTimeout + 10*time.Second; time.Duration(p.TerminationGracePeriodSeconds)*time.Second != want {
			t.Errorf("grace of %d s, want %v", p.TerminationGracePeriodSeconds, want)
		}
		for _, port := range p.Containers[0].Ports {
			if want := map[string]int{"grpc": s.Gateway.Port, "grpc-health": s.Gateway.HealthPort}[port.Name]; want != 0 && want != port.ContainerPort {
				t.Errorf("port %s is %d, configured is %d", port.Name, port.ContainerPort, want)
			}
		}
		if peers := one(t, all, "Service", s.Replicas.KubePeerService).Spec; peers.ClusterIP != "None" || !peers.PublishNotReadyAddresses {
			t.Errorf("replicas find only ready ones: %+v", peers)
		}
		if h2c := one(t, all, "Service", "select-service").Spec.Ports[0].AppProtocol == "kubernetes.io/h2c"; h2c == s.Gateway.SelfSigned {
			t.Errorf("TLS is %t, h2c is %t", s.Gateway.SelfSigned, h2c)
		}
		if len(s.Kubernetes.Pools) == 0 || s.Kubernetes.Pools[0].InferencePool == "" {
			t.Errorf("no pool is watched: %+v", s.Kubernetes)
		}
	})
}

// TestConfiguration proves that the program takes the configuration of the ConfigMap.
func TestConfiguration(t *testing.T) {
	binary := e2e.Binary(t)
	if help, err := exec.Command(binary, "--help-all").Output(); err != nil || !bytes.Contains(help, []byte("--kube-inference-pool")) {
		t.Skipf("the program has no discovery by Kubernetes: %v", err)
	}
	check := func(t *testing.T, all []object) {
		file := filepath.Join(t.TempDir(), "select-service.yaml")
		if err := os.WriteFile(file, []byte(one(t, all, "ConfigMap", "select-service").Data["select-service.yaml"]), 0o600); err != nil {
			t.Fatal(err)
		}
		check := exec.Command(binary, "--config", file, "--check-config")
		check.Env = append(os.Environ(), "POD_NAMESPACE=llm", "POD_NAME=select-service-0", "POD_IP=10.0.0.1")
		if out, err := check.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	}
	eachManifest(t, check)
	t.Run("labels", func(t *testing.T) { check(t, objects(t, render(t, proxyValues))) })
}
