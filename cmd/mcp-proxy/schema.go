package main

import (
	"github.com/spf13/cobra"

	"github.com/mcp-proxy/mcp-proxy/config"
)

func newSchema() *cobra.Command {
	return &cobra.Command{
		Use:     "schema",
		Short:   "Print the JSON Schema of the configuration",
		Long:    "Prints the JSON Schema of the configuration, with which editors complete and check it.",
		Example: "  mcp-proxy schema > mcp-proxy.schema.json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := stdout.Write(config.Schema())
			return err
		},
	}
}
