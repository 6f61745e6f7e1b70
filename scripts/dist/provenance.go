package main

import (
	"crypto/sha256"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// repository is where the source of a release is.
const repository = "https://github.com/select-service/select-service"

// statement is an in-toto statement, v1, with a SLSA provenance predicate, v1
// (https://slsa.dev/spec/v1.0/provenance). It has no times: with them, two builds of
// one commit would differ.
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     struct {
		BuildDefinition struct {
			BuildType            string            `json:"buildType"`
			ExternalParameters   map[string]string `json:"externalParameters"`
			ResolvedDependencies []resource        `json:"resolvedDependencies"`
		} `json:"buildDefinition"`
		RunDetails struct {
			Builder struct {
				ID string `json:"id"`
			} `json:"builder"`
		} `json:"runDetails"`
	} `json:"predicate"`
}

type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

// provenance prints the statement that the files were made by make release from a
// commit. Who vouches for it is who signs it.
func provenance(args []string, _ time.Time) error {
	flags := flag.NewFlagSet("provenance", flag.ContinueOnError)
	version := flags.String("version", "", "release, without v")
	commit := flags.String("commit", "", "commit of the source")
	compiler := flags.String("go", "", "version of Go")
	builder := flags.String("builder", repository+"/blob/main/Makefile", "URI of who runs the build")
	if err := flags.Parse(args); err != nil {
		return err
	}
	s := statement{Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1"}
	for _, name := range flags.Args() {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		s.Subject = append(s.Subject, resource{Name: filepath.Base(name), Digest: map[string]string{"sha256": fmt.Sprintf("%x", sha256.Sum256(b))}})
	}
	d := &s.Predicate.BuildDefinition
	d.BuildType = repository + "/blob/main/scripts/release.sh"
	d.ExternalParameters = map[string]string{"target": "release", "version": *version}
	d.ResolvedDependencies = []resource{
		{URI: "git+" + repository, Digest: map[string]string{"gitCommit": *commit}},
		{URI: "pkg:golang/toolchain@" + *compiler},
	}
	s.Predicate.RunDetails.Builder.ID = *builder
	return json.NewEncoder(os.Stdout).Encode(s)
}
