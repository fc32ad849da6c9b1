package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"strings"

	"skyserve/internal/service"
	"skyserve/internal/store"
	"skyserve/provision/aws"
	"skyserve/provision/gcp"
)

// openFiles returns the bucket with the files of batches of a service; nil if they are in the store. It makes no calls.
func openFiles(ctx context.Context, cfg service.BalancerConfig) (store.Parts, error) {
	scheme, rest, _ := strings.Cut(cfg.StoreFiles, "://")
	bucket, folder, _ := strings.Cut(rest, "/")
	folder += "/" + cfg.Service // balancers delete what no record refers to
	switch scheme {
	case "":
		return nil, nil
	case "s3":
		// The region of the first call: the one of the bucket is found.
		region := cmp.Or(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"), "us-east-1")
		p, err := aws.New(ctx, aws.Config{Regions: []string{region}})
		if err != nil {
			return nil, failed(fmt.Errorf("opening store_files %s: %w", cfg.StoreFiles, err), "")
		}
		return p.Files(bucket, folder), nil
	case "gs":
		return gcp.New(gcp.Config{Service: cfg.Service, Project: os.Getenv("GOOGLE_CLOUD_PROJECT")}).Files(bucket, folder), nil
	}
	return nil, usage(fmt.Errorf("store_files: must be a folder of a bucket such as s3://batches/chat or gs://batches/chat, got %q", cfg.StoreFiles), "")
}
