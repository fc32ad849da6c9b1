package aws

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	ec2types "github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/aws-sdk-go-v2/service/pricing"
	"github.com/aws/aws-sdk-go-v2/service/servicequotas"

	"skyserve/provision"
)

// region is one region of AWS.
type region struct {
	p          *Provider
	name       string // us-east-1
	ec2        *ec2.Client
	quotas     *servicequotas.Client
	pricing    *pricing.Client   // nil where no price list exists
	configured provision.Network // the network for machines; zero = the default network

	netSem chan struct{} // a semaphore, held by the caller that reads the network

	mu     sync.Mutex        // guards the fields below
	net    *network          // cached; nil until it is read
	groups map[string]string // ids of security groups by service, owner and role
	// groupFailures are why security groups could not be created, by the keys of groups, until one is created.
	groupFailures map[string]groupFailure
	// missingImages are the names of public images that the region does not have.
	missingImages map[string]bool

	typesByZone provision.CloudCache[map[string][]string] // the zones of each type
}

// groupFailure is a failed launch of a firewall.
type groupFailure struct {
	at  time.Time
	err error
}

// filter returns a filter for a list call of EC2.
func filter(name string, values ...string) ec2types.Filter {
	return ec2types.Filter{Name: aws.String(name), Values: values}
}

// ofService returns the filter for objects with the tags of a service; of any service if the name is
// empty.
func ofService(name string) ec2types.Filter {
	if name == "" {
		return filter("tag-key", tagService)
	}
	return filter("tag:"+tagService, name)
}

// clearCache drops the cached network and security groups after a call has shown that they are stale.
func (r *region) clearCache() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.net, r.groups = nil, map[string]string{}
}

// groupKey is the cache key of a security group.
func groupKey(w provision.Desired, role string) string { return w.Service + " " + w.Owner + " " + role }

// cacheGroupID caches the id of a group.
func (r *region) cacheGroupID(w provision.Desired, role, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.groups[groupKey(w, role)] = id
}

// waitGroupID returns the id of the security group of a role of w's service, which must have the same
// owner. It waits until the group becomes visible, or until another goroutine fails to create it.
func (r *region) waitGroupID(ctx context.Context, w provision.Desired, role string) (string, error) {
	begun := time.Now()
	r.mu.Lock()
	id := r.groups[groupKey(w, role)]
	r.mu.Unlock()
	if id != "" {
		return id, nil
	}
	found, err := r.p.waitVisible(ctx, func() (bool, error) {
		g, err := r.findGroup(ctx, groupName(w.Service, role))
		if g == nil && err == nil {
			err = r.groupFailureSince(groupKey(w, role), begun)
		}
		if g == nil || err != nil {
			return false, err
		}
		id = aws.ToString(g.GroupId)
		return true, ownedError(w, fromEC2Tags(g.Tags))
	})
	if err != nil {
		return "", err
	}
	if !found {
		return "", fmt.Errorf("finding security group %s: not found; run 'skyserve up' to create the %s firewall of service %s", groupName(w.Service, role), role, w.Service)
	}
	r.cacheGroupID(w, role, id)
	return id, nil
}

// recordGroupFailure records whether a security group of a role could be created.
func (r *region) recordGroupFailure(key string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		delete(r.groupFailures, key)
		return
	}
	if r.groupFailures == nil {
		r.groupFailures = map[string]groupFailure{}
	}
	r.groupFailures[key] = groupFailure{time.Now(), err}
}

// groupFailureSince returns why a security group could not be created since a time; nil = no attempt failed.
func (r *region) groupFailureSince(key string, since time.Time) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f, failed := r.groupFailures[key]; failed && !f.at.Before(since) {
		return fmt.Errorf("waiting for a security group that cannot be created: %w", f.err)
	}
	return nil
}

// maxVisibilityPolls is the maximum number of polls for an object that was just created: about a minute.
const maxVisibilityPolls = 30
