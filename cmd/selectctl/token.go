package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

func (a *app) token() *cobra.Command {
	var (
		name, model, tenant string
		roles               []string
		given               bool
	)
	cmd := &cobra.Command{
		Use: "token --name NAME", Short: "make a token and its entry of the service's tokens file",
		Long: "Makes a token and the entry with its hash for the file of --tokens-file. The token itself is\n" +
			"written to standard error, so that the entry can be appended to the file. It asks no service.",
		Example: "  selectctl token --name ops --role read,operate >> tokens.yaml",
		RunE: func(*cobra.Command, []string) error {
			text := rand.Text()
			if given {
				read, err := io.ReadAll(io.LimitReader(a.in, 4096))
				if err != nil {
					return fmt.Errorf("read the token: %w", err)
				}
				if text = strings.TrimSpace(string(read)); text == "" {
					return usageError{fmt.Errorf("--stdin: there is no token")}
				}
			}
			sum := sha256.Sum256([]byte(text))
			entry := struct {
				Name   string   `yaml:"name"`
				SHA256 string   `yaml:"sha256"`
				Roles  []string `yaml:"roles,flow"`
				Model  string   `yaml:"model,omitempty"`
				Tenant string   `yaml:"tenant,omitempty"`
			}{name, hex.EncodeToString(sum[:]), roles, model, tenant}
			out, err := yaml.Marshal([]any{entry})
			if err != nil {
				return fmt.Errorf("write the entry: %w", err)
			}
			if !given {
				fmt.Fprintln(a.err, text)
			}
			_, err = a.out.Write(out)
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&name, "name", "", "who has it; the name is in audit lines")
	flags.StringSliceVar(&roles, "role", []string{"read"}, "read, call, operate, peer or metrics; several with commas")
	flags.StringVarP(&model, "model", "m", "", "limit it to a model")
	flags.StringVarP(&tenant, "group", "g", "", "limit it to a routing group (tenant)")
	flags.BoolVar(&given, "stdin", false, "take the token from standard input")
	_ = cmd.MarkFlagRequired("name") // it is defined above
	return cmd
}
