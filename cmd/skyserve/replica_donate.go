package main

import "github.com/spf13/cobra"

func newReplicaDonateCmd(o *replicaOptions) *cobra.Command {
	cmd := o.verb(&cobra.Command{
		Use:   "donate ID...",
		Short: "Donate unneeded replicas to other work",
		Long: `Drain a replica and donate it: the service sends it no requests, and its engine keeps running
for other work, which you send to the URL that 'skyserve replica list -o wide' shows. When
the service needs more replicas, it reclaims donated ones first. A replica that is not
reclaimed is removed after autoscale.donate_for, except for machines of static regions.`,
		Example: "  skyserve replica donate us-1",
	}, donateDecision)
	o.addForce(cmd)
	return cmd
}

func newReplicaReclaimCmd(o *replicaOptions) *cobra.Command {
	return o.verb(&cobra.Command{
		Use:     "reclaim ID...",
		Short:   "Reclaim donated replicas and wait until they are ready",
		Example: "  skyserve replica reclaim us-1",
	}, reclaimDecision)
}
