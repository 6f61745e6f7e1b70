package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/select-service/select-service/internal/server/access"
)

func (a *app) token() *cobra.Command {
	var (
		g     access.Grant
		roles []string
		given bool
	)
	cmd := &cobra.Command{
		Annotations: map[string]string{offline: "it makes them by itself"},
		Use:         "token --name NAME", Short: "make a token and its entry of the service's tokens file",
		Long: "Makes a token and the entry with its hash for the file of --tokens-file. The token itself is\n" +
			"written to standard error, so that the entry can be appended to the file. It asks no service.",
		Example: "  selectctl token --name ops --role read,operate >> tokens.yaml",
		RunE: func(*cobra.Command, []string) error {
			var err error
			if g.Roles, err = access.ParseRoles(roles); err != nil {
				return usageError{fmt.Errorf("--role: %w", err)}
			}
			token := access.NewToken()
			if given {
				read, err := io.ReadAll(io.LimitReader(a.in, 4096))
				if err != nil {
					return fmt.Errorf("read the token: %w", err)
				}
				if token = strings.TrimSpace(string(read)); token == "" {
					return usageError{fmt.Errorf("--stdin: there is no token")}
				}
			}
			entry, err := g.Entry(token)
			if err != nil {
				return usageError{err}
			}
			if !given {
				fmt.Fprintln(a.err, token)
			}
			_, err = io.WriteString(a.out, entry)
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&g.Name, "name", "", "who has it; the name is in audit lines")
	flags.StringSliceVar(&roles, "role", []string{"read"}, "read, call, operate, peer or metrics; several with commas")
	flags.StringVarP(&g.Model, "model", "m", "", "limit it to a model")
	flags.StringVarP(&g.Tenant, "group", "g", "", "limit it to a routing group (tenant)")
	flags.BoolVar(&given, "stdin", false, "take the token from standard input")
	_ = cmd.MarkFlagRequired("name") // it is defined above
	return cmd
}
