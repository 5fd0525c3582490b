// Package listen has the subscriptions of one client: to resources in the legacy era
// (resources/subscribe), and subscriptions/listen in the modern one.
package listen
