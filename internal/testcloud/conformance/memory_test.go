package conformance_test

import (
	"testing"

	"skyserve/internal/testcloud/conformance"
	"skyserve/provision"
)

func TestMemoryConforms(t *testing.T) {
	conformance.Run(t, func(*testing.T) conformance.Subject {
		m := &conformance.Memory{}
		return conformance.Subject{
			Provider: m, Reopen: func(*testing.T) provision.Provider { return m }, Service: "chat",
			Desired: []provision.Desired{
				{ID: "firewall", Kind: provision.KindFirewall, Service: "chat", Region: "aws/us-east-1", SpecHash: "f"},
				{ID: "us-0", Kind: provision.KindReplica, Service: "chat", Region: "aws/us-east-1", SpecHash: "s"},
			},
			Other: provision.Desired{ID: "us-0", Kind: provision.KindReplica, Service: "other", Region: "aws/us-east-1", SpecHash: "s"},
		}
	})
}
