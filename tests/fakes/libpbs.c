/* A stand-in for libpbs with the same ABI, for tests of the bindings: a server in memory.
 *
 * As the real one does, it dies of a NULL name in pbs_manager, answers NULL for "no objects" as well as for errors,
 * and wants what it allocated back by pbs_statfree or free. Setting the server's attribute "stand_in" to "down" has
 * every later call fail as without a server, to "hang" has it never come back.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct attrl {
  struct attrl *next;
  char *name, *resource, *value;
  int op;
};
struct batch_status {
  struct batch_status *next;
  char *name;
  struct attrl *attribs;
  char *text;
};
struct object {
  char name[64];
  struct attrl *values;
  int gone;
};

enum { UNKNOWN_JOB = 15001, PERM = 15007, NO_SERVER = 15034, UNKNOWN_RESOURCE = 15035, BAD_VALUE = 15014 };
#define MOST 256

static struct object server = {"pbs", NULL, 0}, jobs[MOST], resources[MOST];
static int job_count, resource_count, connections, error_number, down, live;

int *__pbs_errno_location(void) { return &error_number; }
char *pbs_default(void) { return "pbs"; }

/* Objects of the library that were not given back. */
int stand_in_live(void) { return live; }

static char *copy(const char *text) { return text ? strdup(text) : NULL; }

static struct attrl *find(struct attrl *list, const char *name, const char *resource) {
  for (; list; list = list->next)
    if (!strcmp(list->name, name) && !strcmp(list->resource ? list->resource : "", resource ? resource : ""))
      return list;
  return NULL;
}

static const char *value(struct object *object, const char *name, const char *resource) {
  struct attrl *found = find(object->values, name, resource);
  return found ? found->value : "";
}

static void put(struct object *object, const char *name, const char *resource, const char *text) {
  struct attrl *found = find(object->values, name, resource);
  if (!found) {
    found = calloc(1, sizeof *found);
    found->name = copy(name);
    found->resource = copy(resource);
    found->next = object->values;
    object->values = found;
  } else {
    free(found->value);
  }
  found->value = copy(text);
}

static int fail(int code) {
  error_number = code;
  return code;
}

static int unusable(int connection) {
  if (down || connection <= 0) return fail(NO_SERVER);
  error_number = 0;
  return 0;
}

int pbs_connect(const char *name) {
  put(&server, "scheduling", NULL, value(&server, "scheduling", NULL)[0] ? value(&server, "scheduling", NULL) : "True");
  put(&server, "server_host", NULL, "pbs");
  if (down || (name && strcmp(name, "pbs"))) {
    error_number = 15010;
    return -1;
  }
  return ++connections;
}

int pbs_disconnect(int connection) { return connection > 0 ? 0 : -1; }

char *pbs_geterrmsg(int connection) {
  (void)connection;
  switch (error_number) {
    case UNKNOWN_JOB: return "Unknown Job Id";
    case PERM: return "Unauthorized Request ";
    case NO_SERVER: return "No server to connect to";
    case UNKNOWN_RESOURCE: return "Unknown resource";
    case BAD_VALUE: return "Illegal attribute or resource value";
  }
  return NULL;
}

static struct batch_status *status(struct object *object, struct attrl *wanted) {
  struct batch_status *made = calloc(1, sizeof *made);
  struct attrl *each;
  live++;
  made->name = copy(object->name);
  for (each = object->values; each; each = each->next) {
    struct attrl *chosen = wanted, *item;
    while (chosen && strcmp(chosen->name, each->name)) chosen = chosen->next;
    if (wanted && !chosen) continue;
    item = calloc(1, sizeof *item);
    item->name = copy(each->name);
    item->resource = copy(each->resource);
    item->value = copy(each->value);
    item->next = made->attribs;
    made->attribs = item;
  }
  return made;
}

void pbs_statfree(struct batch_status *list) {
  while (list) {
    struct batch_status *next = list->next;
    while (list->attribs) {
      struct attrl *item = list->attribs;
      list->attribs = item->next;
      free(item->name), free(item->resource), free(item->value), free(item);
    }
    free(list->name), free(list->text), free(list);
    live--;
    list = next;
  }
}

struct batch_status *pbs_statserver(int connection, struct attrl *wanted, const char *extend) {
  int each, job;
  (void)extend;
  if (unusable(connection)) return NULL;
  for (each = 0; each < resource_count; each++) {
    char text[32];
    long used = 0;
    for (job = 0; job < job_count; job++)
      if (!jobs[job].gone && !strcmp(value(&jobs[job], "job_state", NULL), "R"))
        used += atol(value(&jobs[job], "Resource_List", resources[each].name));
    snprintf(text, sizeof text, "%ld", used);
    put(&server, "resources_assigned", resources[each].name, text);
  }
  return status(&server, wanted);
}

struct batch_status *pbs_statvnode(int connection, const char *name, struct attrl *wanted, const char *extend) {
  static struct object vnode = {"c1", NULL, 0};
  (void)extend;
  if (unusable(connection)) return NULL;
  put(&vnode, "state", NULL, "free");
  if (strlen(name) && strcmp(name, vnode.name)) return fail(15062), NULL;
  return status(&vnode, wanted);
}

static struct object *job_of(const char *id) {
  int each;
  for (each = 0; each < job_count; each++)
    if (!jobs[each].gone && !strcmp(jobs[each].name, id)) return &jobs[each];
  fail(UNKNOWN_JOB);
  return NULL;
}

struct batch_status *pbs_statjob(int connection, const char *id, struct attrl *wanted, const char *extend) {
  struct batch_status *list = NULL;
  int each;
  (void)extend;
  if (unusable(connection)) return NULL;
  if (id && *id) {
    struct object *job = job_of(id);
    return job ? status(job, wanted) : NULL;
  }
  for (each = job_count - 1; each >= 0; each--)
    if (!jobs[each].gone) {
      struct batch_status *made = status(&jobs[each], wanted);
      made->next = list;
      list = made;
    }
  return list;
}

struct batch_status *pbs_selstat(int connection, struct attrl *chosen, struct attrl *wanted, const char *extend) {
  struct batch_status *list = NULL;
  int each;
  (void)extend;
  if (unusable(connection)) return NULL;
  for (each = job_count - 1; each >= 0; each--) {
    struct attrl *test = chosen;
    for (; test; test = test->next) {
      const char *has = value(&jobs[each], test->name, test->resource);
      if (!strcmp(test->name, "job_state") ? !strchr(test->value, has[0]) : atol(has) <= atol(test->value)) break;
    }
    if (!test && !jobs[each].gone) {
      struct batch_status *made = status(&jobs[each], wanted);
      made->next = list;
      list = made;
    }
  }
  return list;
}

int pbs_holdjob(int connection, const char *id, const char *kinds, const char *extend) {
  struct object *job;
  (void)extend;
  if (unusable(connection)) return error_number;
  if (!(job = job_of(id))) return error_number;
  put(job, "Hold_Types", NULL, kinds);
  if (strcmp(value(job, "job_state", NULL), "R")) put(job, "job_state", NULL, "H");
  return 0;
}

int pbs_rlsjob(int connection, const char *id, const char *kinds, const char *extend) {
  struct object *job;
  (void)extend, (void)kinds;
  if (unusable(connection)) return error_number;
  if (!(job = job_of(id))) return error_number;
  put(job, "Hold_Types", NULL, "n");
  put(job, "job_state", NULL, "Q");
  return 0;
}

int pbs_alterjob(int connection, const char *id, struct attrl *values, const char *extend) {
  struct object *job;
  (void)extend;
  if (unusable(connection)) return error_number;
  if (!(job = job_of(id))) return error_number;
  for (; values; values = values->next) put(job, values->name, values->resource, values->value);
  return 0;
}

int pbs_manager(int connection, int command, int object, const char *name, struct attrl *values, const char *extend) {
  struct attrl *each;
  int known;
  (void)extend;
  if (strlen(name) > 63) return fail(BAD_VALUE); /* dies of NULL, as the real one does */
  if (unusable(connection)) return error_number;
  if (command == 0 && object == 5) {
    for (known = 0; known < resource_count; known++)
      if (!strcmp(resources[known].name, name)) return fail(BAD_VALUE);
    strcpy(resources[resource_count++].name, name);
    return 0;
  }
  if (command != 2 || object != 0) return fail(PERM);
  for (each = values; each; each = each->next) {
    if (strcmp(each->name, "resources_available")) continue;
    for (known = 0; known < resource_count && strcmp(resources[known].name, each->resource);) known++;
    if (known == resource_count) return fail(UNKNOWN_RESOURCE);
  }
  for (each = values; each; each = each->next) {
    if (!strcmp(each->name, "stand_in")) {
      down = !strcmp(each->value, "down");
      if (!strcmp(each->value, "hang")) for (;;) sleep(60);
    }
    put(&server, each->name, each->resource, each->value);
  }
  return 0;
}

int pbs_runjob(int connection, const char *id, const char *location, const char *extend) {
  struct object *job;
  char text[16];
  (void)extend;
  if (unusable(connection)) return error_number;
  if (!(job = job_of(id))) return error_number;
  put(job, "job_state", NULL, "R");
  put(job, "exec_host", NULL, location ? location : "c1/0");
  snprintf(text, sizeof text, "%d", atoi(value(job, "run_version", NULL)) + 1);
  put(job, "run_version", NULL, text);
  return 0;
}

int pbs_rerunjob(int connection, const char *id, const char *extend) {
  struct object *job;
  (void)extend;
  if (unusable(connection)) return error_number;
  if (!(job = job_of(id))) return error_number;
  put(job, "job_state", NULL, strcmp(value(job, "Hold_Types", NULL), "s") ? "Q" : "H");
  return 0;
}

char *pbs_submit(int connection, struct attrl *values, const char *script, const char *queue, const char *extend) {
  struct object *job = &jobs[job_count];
  (void)script, (void)extend;
  if (unusable(connection)) return NULL;
  if (job_count == MOST) return fail(15046), NULL;
  snprintf(job->name, sizeof job->name, "%d.pbs", ++job_count);
  put(job, "job_state", NULL, "Q");
  put(job, "queue", NULL, queue && *queue ? queue : "workq");
  put(job, "Job_Owner", NULL, "root@login");
  for (; values; values = values->next) put(job, values->name, values->resource, values->value);
  return copy(job->name);
}

int pbs_deljob(int connection, const char *id, const char *extend) {
  struct object *job;
  (void)extend;
  if (unusable(connection)) return error_number;
  if (!(job = job_of(id))) return error_number;
  job->gone = 1;
  return 0;
}
