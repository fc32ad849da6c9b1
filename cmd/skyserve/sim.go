package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

func newSimCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "sim",
		Short: "Simulate a service to compare policies",
		Long: `Simulate a service in virtual time: clients, balancers and replicas in several regions.
The balancers run the production code; only clients, network and engines are simulated. The
same seed yields the same results.`,
		Example: `  skyserve sim list
  skyserve sim run fig8c --policy round-robin,skylb --seeds 3
  skyserve sim list -o yaml failover > mine.yaml
  skyserve sim run mine.yaml --policy skylb,cost`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSimListCmd(), newSimRunCmd(), newSimReplayCmd(), newSimCalibrateCmd(), newSimFuzzCmd())
	return cmd
}

// maxSeeds bounds the memory of the results: the spread of a mean over so many runs is a hundredth of the spread of one.
const maxSeeds = 10_000

// checkSeeds validates --seeds.
func checkSeeds(n int) error {
	switch {
	case n < 1:
		return fmt.Errorf("--seeds: must be at least 1, got %d", n)
	case n > maxSeeds:
		return fmt.Errorf("--seeds: must be at most %d, got %d", maxSeeds, n)
	}
	return nil
}
