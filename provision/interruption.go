package provision

import (
	"context"

	"skyserve/internal/service"
)

// InterruptionReporter is a provider whose List omits interrupted spot machines.
type InterruptionReporter interface {
	// Interruptions returns the machines of a service in a region that their cloud has interrupted recently
	// and that List omits. Their Object.Interrupted is true. Errors include *CredentialsError.
	Interruptions(ctx context.Context, region service.Region, service string) ([]Object, error)
}

// Interruptions calls the provider of the region's cloud; none where its List contains them.
func (p MultiCloud) Interruptions(ctx context.Context, region service.Region, service string) ([]Object, error) {
	provider, err := p.provider(region)
	if err != nil {
		return nil, err
	}
	if reporter, ok := provider.(InterruptionReporter); ok {
		return reporter.Interruptions(ctx, region, service)
	}
	return nil, nil
}
