package gcp

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"skyserve/internal/service"
	"skyserve/provision"
)

// filesPermissions are the permissions of balancers in the bucket for files.
var filesPermissions = []string{"storage.objects.create", "storage.objects.delete", "storage.objects.get", "storage.objects.list"}

var _ provision.FilesChecker = (*Provider)(nil)

// CheckFiles checks that the bucket exists and that its IAM policy, or the project's, lets the service account of
// balancers store files. What the caller may not read is not checked, as the message says.
func (p *Provider) CheckFiles(ctx context.Context, w provision.Desired) provision.LaunchCheck {
	f := w.StoredFolders()[0]
	c := provision.LaunchCheck{CheckResult: provision.CheckResult{Where: string(w.Region), Message: "storing " + f.Contents() + " in gs://" + f.Bucket + "/" + f.Folder}}
	unknown, err := p.checkFilesBucket(ctx, f, w.Service)
	switch {
	case err != nil:
		c.Err = wrapError(err, "checking %s", c.Message)
		c.Message += ": " + err.Error()
		var denied *provision.CredentialsError
		if errors.As(c.Err, &denied) {
			c.Hint = denied.Hint
		}
		return c
	case unknown != nil:
		c.Message += fmt.Sprintf(": the bucket exists; not checked: the permissions of balancers: %v", unknown)
	default:
		c.Message += ": no problem found"
	}
	c.OK = true
	return c
}

// checkFilesBucket returns an error if balancers cannot use a bucket, and in unknown why their permissions could not be
// checked.
func (p *Provider) checkFilesBucket(ctx context.Context, f provision.BucketFolder, name string) (unknown, err error) {
	bucket := f.Bucket
	client, s, err := newStorage(ctx, p)
	if err != nil {
		return nil, err
	}
	account := p.account(name, provision.RoleBalancer, "", s.project)
	grant := "gcloud storage buckets add-iam-policy-binding gs://" + bucket + " --member " + memberPrefix + account + " --role " + roleFiles
	_, err = client.Buckets.Get(bucket).Context(ctx).Do()
	if isMissing(err) {
		return nil, &provision.SpecError{Err: fmt.Errorf("%s: bucket %s does not exist; create it: gcloud storage buckets create gs://%s", f.Key, bucket, bucket)}
	}
	if r, ok := refusalOf(err); ok && r.status == http.StatusForbidden {
		return nil, &provision.CredentialsError{
			Cloud: service.CloudGCP, Action: "storage.buckets.get", Err: fmt.Errorf("%s: bucket %s belongs to another project, or you have no permission to read it: %w", f.Key, bucket, err),
			Hint: "set " + f.Key + " to a bucket of project " + s.project + ", or let an administrator of the bucket grant you roles/storage.legacyBucketReader and run: " + grant,
		}
	}
	if err != nil {
		return nil, err
	}
	granted, unknown := p.permissionsIn(ctx, bucket, account)
	if missing := difference(filesPermissions, granted); unknown == nil && len(missing) > 0 {
		return nil, &provision.CredentialsError{
			Cloud: service.CloudGCP, Action: strings.Join(missing, ", "), Hint: "run: " + grant,
			Err: fmt.Errorf("%s: bucket %s does not grant it to the balancers' service account %s", f.Key, bucket, account),
		}
	}
	return unknown, nil
}

// permissionsIn returns the permissions of a service account in a bucket, by the IAM policies of the bucket and of the
// project. Conditions are taken to hold.
func (p *Provider) permissionsIn(ctx context.Context, bucket, account string) ([]string, error) {
	client, _, err := newStorage(ctx, p)
	if err != nil {
		return nil, err
	}
	policy, err := readPolicy(ctx, client, bucket)
	if err != nil {
		return nil, wrapError(err, "reading the IAM policy of bucket %s", bucket)
	}
	var granted []string
	for _, b := range policy.Bindings {
		if slices.Contains(b.Members, memberPrefix+account) {
			permissions, err := p.permissionsOf(ctx, b.Role)
			if err != nil {
				return nil, err
			}
			granted = append(granted, permissions...)
		}
	}
	if len(difference(filesPermissions, granted)) == 0 {
		return granted, nil
	}
	roles, err := p.rolesOf(ctx, account)
	for _, r := range roles {
		granted = append(granted, r.permissions...)
	}
	return granted, err
}
