/* ------------------------------------------------------------------------------------------- entry points */

#define TENON_ROW(name, type, offset, bytes, rank, ...) {name, #type, offset, bytes, rank, {__VA_ARGS__}},
const TenonPort tenon_inputs[] = {PREFIX_INPUTS(TENON_ROW){"", "", 0, 0, 0, {0}}};
const TenonPort tenon_outputs[] = {PREFIX_OUTPUTS(TENON_ROW){"", "", 0, 0, 0, {0}}};

static const TenonPreprocessing *const image_how = &tenon_preprocessing[0];

int NAME_image(const uint8_t *pixels, long height, long width, int channels, const uint8_t *constantWeight,
               uint8_t *mutableWeight, uint8_t *activations) {
  Image image = {width, height, channels, NULL};
  if (channels != 1 && channels != 3) return PREFIX_BAD_IMAGE;
  if (height < 1 || width < 1 || height > IMAGE_LARGEST || width > IMAGE_LARGEST) return PREFIX_BAD_IMAGE;
  if (tenon_image_allocate(&image) != NULL) return PREFIX_NO_MEMORY;
  memcpy(image.pixels, pixels, (size_t)height * (size_t)width * (size_t)channels);
  unsigned char *fitted = NULL;
  const char *problem = tenon_fit_image(&image, image_how, &fitted);
  if (problem == NULL) tenon_put_pixels(fitted, image_how, tenon_inputs[0].type, mutableWeight + tenon_inputs[0].offset);
  free(fitted);
  free(image.pixels);
  return problem == NULL ? NAME(constantWeight, mutableWeight, activations) : PREFIX_NO_MEMORY;
}

long NAME_detect(const uint8_t *mutableWeight, long height, long width, double threshold, double overlap,
                 NAME_detection *found, long room) {
  Detection *all = NULL;
  size_t count = 0;
  const DetectionLimits limits = {threshold, overlap};
  if (tenon_heads.kind == HEADS_NONE || height < 1 || width < 1) return 0;
  if (tenon_find_detections(image_how, mutableWeight, height, width, limits, &all, &count) != NULL) return -1;
  const long most = room < 0 ? 0 : room, kept = (size_t)most < count ? most : (long)count;
  for (long i = 0; i < kept; i++) {
    const double *box = all[i].box;
    const NAME_detection one = {all[i].kind, all[i].score, box[0], box[1], box[2], box[3]};
    found[i] = one;
  }
  free(all);
  return kept;
}

const char *NAME_label(long kind) { return kind < 0 || kind >= tenon_label_count ? NULL : tenon_labels[kind]; }
