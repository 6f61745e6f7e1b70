// Command generate writes the documents of package api from their source.
//
// The source describes each operation and component once. What is so in one
// dialect only carries its version: a key `routing_group@1.6` or an item
// `tenant_id@1.3` of a list is left out of the other one. A document has every
// path in the dialect of its contract, and again under /v1.3 and /v1.6; paths
// with `x-unprefixed` have no such twins. Components that the dialects have
// differently, by themselves or through what they refer to, get the suffixes V13
// and V16, as the operations of the twins do.
//
// What has application/json has application/msgpack too, unless `x-json-only` says
// otherwise.
//
// The fields of a worker come from catalog.Fields, with their texts: `x-worker-fields` stands for them in the
// source, and the types of workers in both clients have them from there.
//
// Every operation has its role in x-role: from that come its security, and the
// answers that refuse a caller.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"
)

const header = "# Code generated from source.yaml by go generate ./api. DO NOT EDIT.\n"

func main() {
	dir := "."
	if len(os.Args) > 1 {
		dir = os.Args[1]
	}
	if err := generate(dir); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

// generate writes the documents into the folder of the source, and the workers' fields into the types of the clients.
func generate(dir string) error {
	source, err := os.ReadFile(filepath.Join(dir, "source.yaml"))
	if err != nil {
		return err
	}
	for _, d := range dialects {
		text, err := document(source, d)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, d.file), text, 0o644); err != nil {
			return err
		}
	}
	for file, rewrite := range clients {
		path := filepath.Join(dir, file)
		old, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text, err := rewrite(string(old))
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// document returns the document of a server with the given contract.
func document(source []byte, contract dialect) ([]byte, error) {
	var parsed yaml.Node
	if err := yaml.Unmarshal(source, &parsed); err != nil {
		return nil, err
	}
	if len(parsed.Content) == 0 {
		return nil, errors.New("the source is empty")
	}
	filled, err := withFields(parsed.Content[0])
	if err != nil {
		return nil, err
	}
	root, err := assemble(filled, contract)
	if err != nil {
		return nil, err
	}
	inMsgpack(root, map[*yaml.Node]bool{})
	out := bytes.NewBufferString(header)
	enc := yaml.NewEncoder(out)
	enc.SetIndent(2)
	if err := enc.Encode(root); err != nil {
		return nil, err
	}
	if err := enc.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
