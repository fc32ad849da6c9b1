package gcp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"google.golang.org/api/storage/v1"

	"skyserve/internal/service"
	"skyserve/provision"
)

// programPermissions are the permissions that an operator requires in addition to store the binary.
var programPermissions = []string{
	"storage.buckets.create", "storage.buckets.delete", "storage.buckets.get", "storage.buckets.getIamPolicy", "storage.buckets.list", "storage.buckets.setIamPolicy", "storage.buckets.update",
	"storage.objects.create", "storage.objects.delete", "storage.objects.get", "storage.objects.list",
}

// programHint is the next step after missing programPermissions.
const programHint = "grant the role Storage Admin, or pass --program URL"

// readersOf returns the service accounts of a service's machines in a project, sorted.
func (p *Provider) readersOf(name, project string) []string {
	var accounts []string
	for _, role := range []provision.Role{provision.RoleBalancer, provision.RoleReplica} {
		if account := p.account(name, role, "", project); account != "" {
			accounts = append(accounts, account)
		}
	}
	slices.Sort(accounts)
	return slices.Compact(accounts)
}

// checkReaders returns an error where a service account of a service's machines does not exist: Cloud Storage
// rejects an IAM policy with its name.
func (p *Provider) checkReaders(ctx context.Context, name string) error {
	for _, role := range []provision.Role{provision.RoleBalancer, provision.RoleReplica} {
		if err := p.checkAccount(ctx, name, role); err != nil {
			return err
		}
	}
	return nil
}

// ensureReaders lets the machines of a service, and no others, read the objects of its bucket. Other roles in
// the bucket's IAM policy stay.
func (p *Provider) ensureReaders(ctx context.Context, w provision.Desired) error {
	client, s, err := newStorage(ctx, p)
	if err != nil {
		return err
	}
	bucket, readers := w.Binary.Bucket, p.readersOf(w.Service, s.project)
	return p.pollUntil(ctx, "IAM policy of bucket "+bucket, func() (bool, error) {
		policy, err := readPolicy(ctx, client, bucket)
		if err != nil || slices.Equal(policyReaders(policy), readers) {
			return err == nil, err
		}
		policy.Bindings = slices.DeleteFunc(policy.Bindings, isReaderBinding)
		policy.Bindings = append(policy.Bindings, &storage.PolicyBindings{Role: roleReader, Members: withPrefix(memberPrefix, readers)})
		_, err = client.Buckets.SetIamPolicy(bucket, policy).Context(ctx).Do()
		if r, ok := refusalOf(err); ok && r.status == http.StatusPreconditionFailed {
			return false, nil // another process has changed it
		}
		return err == nil, err
	})
}

// hasReaders reports whether the machines of a service, and no others, may read the objects of its bucket.
func (p *Provider) hasReaders(ctx context.Context, bucket, name string) (bool, error) {
	client, s, err := newStorage(ctx, p)
	if err != nil {
		return false, err
	}
	policy, err := readPolicy(ctx, client, bucket)
	if isMissing(err) {
		return false, nil
	}
	return err == nil && slices.Equal(policyReaders(policy), p.readersOf(name, s.project)), err
}

// readPolicy reads the IAM policy of a bucket, with conditions.
func readPolicy(ctx context.Context, client *storage.Service, bucket string) (*storage.Policy, error) {
	return client.Buckets.GetIamPolicy(bucket).OptionsRequestedPolicyVersion(policyVersion).Context(ctx).Do()
}

// isReaderBinding reports whether a binding lets its members read objects without a condition.
func isReaderBinding(b *storage.PolicyBindings) bool {
	return b.Role == roleReader && b.Condition == nil
}

// policyReaders returns the service accounts that may read all objects, sorted, and other members by their
// full names.
func policyReaders(policy *storage.Policy) []string {
	var readers []string
	for _, b := range policy.Bindings {
		if !isReaderBinding(b) {
			continue
		}
		for _, m := range b.Members {
			readers = append(readers, strings.TrimPrefix(m, memberPrefix))
		}
	}
	slices.Sort(readers)
	return readers
}

// withPrefix returns texts with a prefix.
func withPrefix(prefix string, texts []string) []string {
	var all []string
	for _, text := range texts {
		all = append(all, prefix+text)
	}
	return all
}

// CheckBinary checks before anything is created whether a binary can be stored: the permissions, the service
// accounts that read it, the name of the bucket, and the binary.
func (p *Provider) CheckBinary(ctx context.Context, w provision.Desired) provision.LaunchCheck {
	c := provision.LaunchCheck{CheckResult: provision.CheckResult{Where: string(w.Region), Message: "storing the skyserve binary in bucket " + w.Binary.Bucket}}
	for _, check := range []func(context.Context, provision.Desired) error{p.checkBinaryPermissions, p.checkBinaryReaders, p.checkBucketName, p.checkStored} {
		err := check(ctx, w)
		if err == nil {
			continue
		}
		c.Err = wrapBinaryError(err, "checking "+c.Message)
		c.Message += ": " + err.Error()
		var denied *provision.CredentialsError
		if errors.As(c.Err, &denied) {
			c.Hint = denied.Hint
		}
		return c
	}
	c.OK = true
	c.Message += ": no problem found"
	return c
}

// checkBinaryPermissions checks the caller's permissions in the project. A caller who may not test them is not
// rejected.
func (p *Provider) checkBinaryPermissions(ctx context.Context, _ provision.Desired) error {
	s, err := p.openSession(ctx)
	if err != nil {
		return err
	}
	granted, err := p.grantedPermissions(ctx, programPermissions)
	if r, ok := refusalOf(err); ok && r.status == http.StatusForbidden {
		return nil
	}
	if err != nil {
		return err
	}
	if missing := difference(programPermissions, granted); len(missing) > 0 {
		return &provision.CredentialsError{
			Cloud: service.CloudGCP, Action: strings.Join(missing, ", "), Hint: programHint, Err: fmt.Errorf("project %s does not grant it", s.project),
		}
	}
	return nil
}

func (p *Provider) checkBinaryReaders(ctx context.Context, w provision.Desired) error {
	return p.checkReaders(ctx, w.Service)
}

// checkBucketName returns an error if the bucket exists and is not the service's bucket in this project.
func (p *Provider) checkBucketName(ctx context.Context, w provision.Desired) error {
	b, err := p.findBucket(ctx, w.Binary.Bucket)
	if err != nil {
		return err
	}
	if b != nil {
		return checkBucketOwner(b, w.Service, w.Owner)
	}
	client, _, err := newStorage(ctx, p)
	if err != nil {
		return err
	}
	if _, err = client.Buckets.Get(w.Binary.Bucket).Context(ctx).Do(); isMissing(err) {
		return nil
	}
	if r, ok := refusalOf(err); err == nil || ok && r.status == http.StatusForbidden {
		if err == nil {
			err = errors.New("the bucket exists in another project")
		}
		return &provision.BucketTakenError{Bucket: w.Binary.Bucket, Cloud: service.CloudGCP, Err: err}
	}
	return err
}

// checkStored returns an error if the binary is neither in the bucket nor on this computer.
func (p *Provider) checkStored(ctx context.Context, w provision.Desired) error {
	if w.Binary.File != "" {
		return nil
	}
	exists, err := p.hasObject(ctx, *w.Binary)
	if err == nil && !exists {
		err = missingBinary(*w.Binary)
	}
	return err
}
