package main

import (
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"
)

// Of the OCI image specification 1.1: https://github.com/opencontainers/image-spec.
const (
	indexType    = "application/vnd.oci.image.index.v1+json"
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	configType   = "application/vnd.oci.image.config.v1+json"
	layerType    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

// user is who the programs run as: nobody's number on most systems, and that of
// other images without a shell.
const user = "65532"

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type index struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Manifests     []descriptor      `json:"manifests"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

type manifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Config        descriptor        `json:"config"`
	Layers        []descriptor      `json:"layers"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

type imageConfig struct {
	Created string `json:"created"`
	platform
	Config struct {
		User         string
		Env          []string
		Entrypoint   []string
		ExposedPorts map[string]struct{}
		WorkingDir   string
		StopSignal   string
		Labels       map[string]string
	} `json:"config"`
	RootFS struct {
		Type    string   `json:"type"`
		DiffIDs []string `json:"diff_ids"`
	} `json:"rootfs"`
	History []map[string]string `json:"history"`
}

// layout is the content of an OCI image layout.
type layout struct{ files []file }

// image writes an image layout as a tar archive: for each architecture one layer with the programs,
// the certificates and the name of the user. There is no shell. It prints the digest
// of the index, which is what a pull by digest names.
func image(args []string, at time.Time) error {
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	out := flags.String("out", "", "file to write")
	name := flags.String("name", "", "name of the image, without tag")
	version := flags.String("version", "", "tag")
	certs := flags.String("certs", "", "certificate authorities (PEM)")
	entry := flags.String("entrypoint", "", "the program that runs")
	commit := flags.String("commit", "", "the commit that the programs are built from")
	source := flags.String("source", "", "URL of the repository")
	if err := flags.Parse(args); err != nil {
		return err
	}
	folders, err := pairs(flags.Args())
	if err != nil {
		return err
	}
	authorities, err := read(*certs)
	if err != nil {
		return err
	}
	labels := map[string]string{
		"org.opencontainers.image.title": *entry, "org.opencontainers.image.version": *version,
		"org.opencontainers.image.revision": *commit, "org.opencontainers.image.source": *source,
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
	var l layout
	var images []descriptor
	for _, f := range folders {
		m, err := l.image(f[0], f[1], *entry, authorities.content, labels, at)
		if err != nil {
			return fmt.Errorf("%s: %w", f[0], err)
		}
		images = append(images, m)
	}
	d, err := l.object(indexType, index{2, indexType, images, labels})
	if err != nil {
		return err
	}
	// The second name is the one under which containerd, and so Docker and kind, load it.
	d.Annotations = map[string]string{
		"org.opencontainers.image.ref.name": *version, "io.containerd.image.name": *name + ":" + *version,
	}
	top, err := json.Marshal(index{2, indexType, []descriptor{d}, nil})
	if err != nil {
		return err
	}
	l.files = append(l.files, file{"index.json", 0o644, top}, file{"oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)})
	all, err := tarball(l.files, at)
	if err != nil {
		return err
	}
	if err := os.WriteFile(*out, all, 0o644); err != nil {
		return err
	}
	_, err = fmt.Fprintln(os.Stdout, d.Digest)
	return err
}

// image writes the image of one architecture, whose programs are in a folder.
func (l *layout) image(arch, dir, entry string, certs []byte, labels map[string]string, at time.Time) (descriptor, error) {
	programs, err := tree(dir)
	if err != nil {
		return descriptor{}, err
	}
	files := []file{
		{"etc/group", 0o644, []byte("root:x:0:\nselect-service:x:" + user + ":\n")},
		{"etc/passwd", 0o644, []byte("root:x:0:0:root:/:/sbin/nologin\nselect-service:x:" + user + ":" + user + "::/:/sbin/nologin\n")},
		{"etc/ssl/certs/ca-certificates.crt", 0o644, certs},
	}
	found := false
	for _, p := range programs {
		found = found || p.name == entry
		files = append(files, file{"usr/bin/" + p.name, 0o755, p.content})
	}
	if !found {
		return descriptor{}, fmt.Errorf("%s is not in %s", entry, dir)
	}
	raw, err := tarball(files, at)
	if err != nil {
		return descriptor{}, err
	}
	packed, err := zipped(raw)
	if err != nil {
		return descriptor{}, err
	}
	layer := l.blob(layerType, packed)
	c := imageConfig{Created: at.Format(time.RFC3339), platform: platform{arch, "linux"}}
	c.Config.User = user + ":" + user
	c.Config.Env = []string{"PATH=/usr/bin"}
	c.Config.Entrypoint = []string{"/usr/bin/" + entry}
	c.Config.ExposedPorts = map[string]struct{}{"8092/tcp": {}, "9002/tcp": {}, "9003/tcp": {}, "9092/tcp": {}}
	c.Config.WorkingDir = "/"
	c.Config.StopSignal = "SIGTERM"
	c.Config.Labels = labels
	c.RootFS.Type = "layers"
	c.RootFS.DiffIDs = []string{digest(raw)}
	c.History = []map[string]string{{"created": c.Created, "created_by": "scripts/dist"}}
	conf, err := l.object(configType, c)
	if err != nil {
		return descriptor{}, err
	}
	m, err := l.object(manifestType, manifest{2, manifestType, conf, []descriptor{layer}, labels})
	m.Platform = &c.platform
	return m, err
}

func digest(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

func (l *layout) object(mediaType string, v any) (descriptor, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return descriptor{}, err
	}
	return l.blob(mediaType, b), nil
}

// blob adds a blob, if it is not there, and describes it.
func (l *layout) blob(mediaType string, b []byte) descriptor {
	d := descriptor{MediaType: mediaType, Digest: digest(b), Size: int64(len(b))}
	name := "blobs/sha256/" + d.Digest[len("sha256:"):]
	if !slices.ContainsFunc(l.files, func(f file) bool { return f.name == name }) {
		l.files = append(l.files, file{name, 0o644, b})
	}
	return d
}
